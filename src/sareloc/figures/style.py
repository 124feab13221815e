"""One look for every figure: colours that colour-blind readers can tell apart, and a second sign beside each colour.

A series differs from the others by colour, line style and marker; right and wrong by colour and by solid or dashed
lines: everything can be read in grey. Figures are made without pyplot, so that nothing global is left behind, and the
reader's own matplotlib settings neither change them nor are changed.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from sareloc.arrays import Floats
from sareloc.errors import ArgumentError, look_up, need
from sareloc.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


P = ParamSpec("P")
R = TypeVar("R")

INK, FAINT = "#1f2328", "#d0d7de"
"""Text and axes; grids and whatever stays in the background."""
RIGHT, WRONG = "#009e73", "#d55e00"
"""Always with a second sign: right is solid, wrong is dashed."""
DOTS_PER_INCH = 150


@dataclass(frozen=True)
class Look:
    """How one series of several is told from the others."""

    colour: str
    line: str | tuple[int, tuple[float, ...]]
    marker: str


LOOKS = (
    Look("#0072b2", "-", "o"),
    Look("#d55e00", (0, (5, 1.5)), "s"),
    Look("#009e73", (0, (5, 1.5, 1, 1.5)), "^"),
    Look("#cc79a7", (0, (1.2, 1.2)), "D"),
    Look("#e69f00", (0, (9, 2)), "v"),
    Look("#56b4e9", (0, (3, 1, 1, 1, 1, 1)), "P"),
    Look("#7a5195", (0, (2.5, 2.5)), "X"),
    Look("#4d4d4d", (0, (7, 2, 2, 2)), "*"),
)

SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # of equal widths, so that text in SVG fits elsewhere too
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
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "svg.hashsalt": "sareloc",
}


def house_look() -> AbstractContextManager[None]:
    """Matplotlib's own defaults and `SETTINGS`, for as long as the context lasts."""
    context: AbstractContextManager[None] = need("matplotlib.style", "plot").context(["default", SETTINGS])
    return context


def drawn(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a function draw in the house look."""

    @functools.wraps(draw)
    def in_the_house_look(*args: P.args, **kwargs: P.kwargs) -> R:
        with house_look():
            return draw(*args, **kwargs)

    return in_the_house_look


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure of this size in inches, whose parts find their own room."""
    roomy = need("matplotlib.layout_engine", "plot").ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    figure: Figure = need("matplotlib.figure", "plot").Figure((width_in, height_in), layout=roomy)
    return figure


def save_figure(figure: Figure, path: Path | str) -> Path:
    """Write a figure as PNG, SVG or PDF, by the suffix; beside its place first, then renamed. The folder is made."""
    path = Path(path)
    makers: dict[str, Callable[[Figure], bytes]] = {".png": png_bytes, ".svg": svg_bytes, ".pdf": pdf_bytes}
    return write_beside(path, look_up(makers, path.suffix.lower(), "figure suffix")(figure))


def png_bytes(figure: Figure, dots_per_inch: int = DOTS_PER_INCH) -> bytes:
    """The figure as a PNG file."""
    return _rendered(figure, format="png", dpi=dots_per_inch)


def svg_bytes(figure: Figure, *, transparent: bool = False) -> bytes:
    """The figure as an SVG file, its text as text; `transparent`: without its own background."""
    about = {"Date": None, "Creator": "sareloc"}  # no date: the same figure gives the same bytes
    return _rendered(figure, format="svg", dpi=DOTS_PER_INCH, transparent=transparent, metadata=about)


def pdf_bytes(figure: Figure) -> bytes:
    """The figure as a PDF file, for papers."""
    return _rendered(figure, format="pdf", dpi=2 * DOTS_PER_INCH, metadata={"CreationDate": None, "Creator": "sareloc"})


def _rendered(figure: Figure, **how: Any) -> bytes:
    content = io.BytesIO()
    with house_look():
        figure.savefig(content, **how)
    return content.getvalue()


def write_beside(path: Path, content: bytes) -> Path:
    """Write a file beside its place and rename it, so that it is never half there. The folder is made."""
    with replacing(path) as beside:
        beside.write_bytes(content)
    return path


def look_of(number: int) -> Look:
    """The look of the series of this number, from 0; they come round again after the last."""
    return LOOKS[number % len(LOOKS)]


def plain_image(axes: Axes, image: npt.NDArray[Any], **how: Any) -> None:
    """An image without axes, grid or frame."""
    axes.imshow(image, **how)
    axes.set_axis_off()


def finite(values: npt.ArrayLike | Sequence[float], what: str) -> Floats:
    """The values as an array, at least one and all of them finite; `what` names them in the error."""
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        raise ArgumentError(f"there is nothing to draw: {what} has no values")
    broken = np.argwhere(~np.isfinite(array))
    if len(broken):
        where = ", ".join(map(str, broken[0].tolist()))
        raise ArgumentError(f"{what} has {array[tuple(broken[0])]} at [{where}], which cannot be drawn")
    return array
