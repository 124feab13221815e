"""The style of all figures, and writing them as PNG, SVG or PDF.

Series differ by colour, line style and marker, and right and wrong by colour and solid or dashed lines, so that figures
can be read in greyscale and by colour-blind readers. Figures are made without pyplot and without global state: the
user's matplotlib settings neither affect them nor are changed.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats
from sareloc.errors import ArgumentError, look_up, need
from sareloc.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


P = ParamSpec("P")
R = TypeVar("R")

INK, FAINT = "#1f2328", "#d0d7de"
"""Text and axes; grids and other background elements."""
RIGHT, WRONG = "#009e73", "#d55e00"
"""Colours of right and wrong results; right is also solid, wrong dashed."""
DOTS_PER_INCH = 150


@dataclass(frozen=True)
class SeriesStyle:
    """Colour, line style and marker of one series."""

    colour: str
    line: str | tuple[int, tuple[float, ...]]
    marker: str

    @property
    def options(self) -> dict[str, Any]:
        """The style as arguments of matplotlib's `plot`."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker}


Styles = Mapping[str, SeriesStyle]
"""Styles by the names of series."""
SERIES_STYLES = (
    SeriesStyle("#0072b2", "-", "o"),
    SeriesStyle("#d55e00", (0, (5, 1.5)), "s"),
    SeriesStyle("#009e73", (0, (5, 1.5, 1, 1.5)), "^"),
    SeriesStyle("#cc79a7", (0, (1.2, 1.2)), "D"),
    SeriesStyle("#e69f00", (0, (9, 2)), "v"),
    SeriesStyle("#56b4e9", (0, (3, 1, 1, 1, 1, 1)), "P"),
    SeriesStyle("#7a5195", (0, (2.5, 2.5)), "X"),
    SeriesStyle("#4d4d4d", (0, (7, 2, 2, 2)), "*"),
)

SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # of equal widths, so that SVG text fits with either
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "figure.facecolor": "white",
    "savefig.facecolor": "auto",
    "svg.fonttype": "none",  # text as text: small, searchable files
    "svg.hashsalt": "sareloc",
}


def figure_style() -> AbstractContextManager[None]:
    """A context with matplotlib's defaults and `SETTINGS`."""
    context: AbstractContextManager[None] = need("matplotlib.style", "plot").context(["default", SETTINGS])
    return context


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a drawing function to run within `figure_style`."""

    @functools.wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> R:
        with figure_style():
            return draw(*args, **kwargs)

    return in_style


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure of this size in inches with constrained layout."""
    layout = need("matplotlib.layout_engine", "plot").ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure: Figure = need("matplotlib.figure", "plot").Figure((width_in, height_in), layout=layout)
    return figure


def save_figure(figure: Figure, path: Path | str) -> Path:
    """Write a figure atomically as PNG, SVG or PDF, by the suffix; the folder is created. Returns the path."""
    path = Path(path)
    makers: dict[str, Callable[[Figure], bytes]] = {".png": png_bytes, ".svg": svg_bytes, ".pdf": pdf_bytes}
    return write_atomically(path, look_up(makers, path.suffix.lower(), "figure suffix")(figure))


def png_bytes(figure: Figure, dots_per_inch: int = DOTS_PER_INCH) -> bytes:
    """The figure as a PNG file."""
    return _rendered(figure, format="png", dpi=dots_per_inch)


def svg_bytes(figure: Figure, *, transparent: bool = False) -> bytes:
    """The figure as an SVG file, text as text; `transparent`: without a background."""
    metadata = {"Date": None, "Creator": "sareloc"}  # no date: equal figures give equal bytes
    return _rendered(figure, format="svg", dpi=DOTS_PER_INCH, transparent=transparent, metadata=metadata)


def pdf_bytes(figure: Figure) -> bytes:
    """The figure as a PDF file."""
    return _rendered(figure, format="pdf", dpi=2 * DOTS_PER_INCH, metadata={"CreationDate": None, "Creator": "sareloc"})


def _rendered(figure: Figure, **how: Any) -> bytes:
    content = io.BytesIO()
    with figure_style():
        figure.savefig(content, **how)
    return content.getvalue()


def series_style(number: int) -> SeriesStyle:
    """The style of a series by its number, from 0; styles repeat after the last."""
    return SERIES_STYLES[number % len(SERIES_STYLES)]


def series_styles(*figures: Iterable[str]) -> dict[str, SeriesStyle]:
    """A style for each name of a series, in the order of the names; equal names of several figures have one style."""
    return {name: series_style(number) for number, name in enumerate(dict.fromkeys(chain(*figures)))}


def show_image(axes: Axes, image: npt.NDArray[Any], **how: Any) -> None:
    """Show an image without axes, grid or frame."""
    axes.imshow(image, **how)
    axes.set_axis_off()


def require_finite(values: npt.ArrayLike | Sequence[float], what: str) -> Floats:
    """The values as an array; raises ArgumentError, with `what` as their name, if there are none or some not finite."""
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        raise ArgumentError(f"nothing to draw: {what} has no values")
    invalid = np.argwhere(~np.isfinite(array))
    if len(invalid):
        where = ", ".join(map(str, invalid[0].tolist()))
        raise ArgumentError(f"{what} has {array[tuple(invalid[0])]} at [{where}], which cannot be drawn")
    return array
