"""The words of signs: pages of glyphs for the atlas, words from a random generator, and their letters as numbers.

A page has GLYPHS cells side by side, each as wide as high / 2: a blank, the letters A to Z, and symbols. A sign stores
its word as numbers of cells, so that every shop has a word of its own and towns share the pages. The second colour of a
sign is that of its letters, the third that of their shadow or outline.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sareloc.city.textures import SCALE, Page, shrink

GLYPHS, CELL = 32, 32
"""Cells of a page, a power of two, and their width in pixels."""
LONGEST = 12
"""Letters of a word, blanks and symbols included."""
PACKED = 4
"""Letters in one number: 5 bits each, which float32 represents exactly."""
BLANK, FIRST_SYMBOL, SYMBOLS = 0, 27, 5

TRADES = (
    "CAFE", "BAR", "HOTEL", "BAKERY", "PHARMACY", "BOOKS", "BANK", "FLOWERS", "OPTICS", "MARKET", "TAILOR", "CINEMA",
    "PIZZA", "KEBAB", "SUSHI", "BARBER", "SHOES", "GALLERY", "TOYS", "WINES", "BISTRO", "STUDIO", "PRESS", "SALON",
    "TAXI", "POST", "MUSIC", "CLINIC", "DENTIST", "LAWYER", "FISH", "TEA", "SPORT", "LAMPS", "CARPETS", "FRAMES",
)  # fmt: skip
ONSETS = ("B", "C", "D", "F", "G", "H", "K", "L", "M", "N", "P", "R", "S", "T", "V", "Z", "BR", "CR", "ST", "TR", "")
CORES = ("A", "E", "I", "O", "U", "AI", "OU", "Y")
CODAS = ("", "", "", "N", "R", "S", "L", "X", "CK", "T")
FACES: dict[str, dict[str, float]] = {
    "bold": {"size": 0.62, "stroke": 0.035},
    "light": {"size": 0.56, "stroke": 0.0},
    "slanted": {"size": 0.6, "stroke": 0.02, "slant": 0.22},
    "outlined": {"size": 0.62, "stroke": 0.02, "outline": 0.05},
    "shadowed": {"size": 0.6, "stroke": 0.03, "shadow": 0.05},
    "small": {"size": 0.6, "stroke": 0.015, "lower": 1.0},
    "tall": {"size": 0.46, "stroke": 0.015, "stretch": 1.7},
}
SCRIPTS = 3
"""Faces of invented letters, for graffiti and some shops."""


def make_faces() -> dict[str, Page]:
    """The pages (h, w, 4) of all faces by name (see `atlas`): "face 0" and on."""
    pages = [_page([_printed(chr(ord("A") + i), **face) for i in range(26)]) for face in FACES.values()]
    pages += [
        _page([_written(np.random.default_rng([9, n, i]), 0.06 + 0.03 * n) for i in range(26)]) for n in range(SCRIPTS)
    ]
    return {f"face {i}": page for i, page in enumerate(pages)}


def make_word(rng: np.random.Generator) -> str:
    """A trade, a name, or both, of at most LONGEST letters."""
    name = ""
    for _ in range(int(rng.integers(1, 4))):
        name += str(rng.choice(ONSETS)) + str(rng.choice(CORES))
    name = (name + str(rng.choice(CODAS)))[: LONGEST - 2]
    kind = rng.random()
    trade = str(rng.choice(TRADES))
    if kind < 0.2 and len(trade) + len(name) < LONGEST - 2:
        return f"{trade} {name}" if kind < 0.1 else f"{name} {trade}"
    return trade if kind < 0.3 else name


def pack(rng: np.random.Generator, word: str) -> dict[str, float]:
    """The columns `letters`, `text0`, `text1` and `text2` of a sign: the word, in some with a symbol at an end."""
    cells = [BLANK if letter == " " else ord(letter) - ord("A") + 1 for letter in word[:LONGEST]]
    symbol = FIRST_SYMBOL + int(rng.integers(SYMBOLS))
    if rng.random() < 0.35 and len(cells) < LONGEST:
        cells = [symbol, *cells] if rng.random() < 0.7 else [*cells, symbol]
    edge = [BLANK] * min(int(rng.integers(0, 3)), (LONGEST - len(cells)) // 2)
    cells = [*edge, *cells, *edge]
    numbers = [
        float(sum(cell << (5 * i) for i, cell in enumerate(cells[start : start + PACKED])))
        for start in range(0, LONGEST, PACKED)
    ]
    return {"letters": float(len(cells)), **{f"text{i}": number for i, number in enumerate(numbers)}}


Cell = tuple[Image.Image, Image.Image]
"""The weights of the second and of the third colour."""


def _page(letters: list[Cell]) -> Page:
    blank = Image.new("L", (CELL * SCALE, 2 * CELL * SCALE), 0)
    cells = [(blank, blank), *letters, *((_symbol(i), blank) for i in range(SYMBOLS))]
    second, third = (
        np.concatenate([np.asarray(cell[part], dtype=np.float64) / 255 for cell in cells], axis=1) for part in (0, 1)
    )
    third = third * (1 - second)
    stack = np.stack([np.ones_like(second), second, third, np.zeros_like(second)], axis=-1)
    return shrink(stack, SCALE, SCALE)


def _printed(
    letter: str,
    *,
    size: float,
    stroke: float,
    slant: float = 0.0,
    outline: float = 0.0,
    shadow: float = 0.0,
    lower: float = 0.0,
    stretch: float = 1.0,
) -> Cell:
    """A letter of Pillow's font; lengths relative to the height of the cell."""
    w, h = CELL * SCALE, 2 * CELL * SCALE
    font = ImageFont.load_default(size=h * size)
    text = letter.lower() if lower else letter

    def put(extra: float, shift: float) -> Image.Image:
        width = round(h * (stroke + extra))
        image = Image.new("L", (2 * w, h), 0)
        ImageDraw.Draw(image).text(
            (w + shift * h, h * 0.5 + shift * h), text, fill=255, font=font, anchor="mm", stroke_width=width
        )
        if slant or stretch != 1:
            image = image.transform(
                image.size,
                Image.Transform.AFFINE,
                (1, slant, -slant * h / 2, 0, 1 / stretch, h / 2 * (1 - 1 / stretch)),
            )
        left, _, right, _ = image.getbbox() or (0, 0, 1, 1)
        room = round(w * 0.92)
        drawn = image.crop((left, 0, right, h))
        drawn = drawn.resize((min(room, max(drawn.width, 1)), h))
        cell = Image.new("L", (w, h), 0)
        cell.paste(drawn, ((w - drawn.width) // 2, 0))
        return cell

    return put(0.0, 0.0), put(outline, shadow) if outline or shadow else Image.new("L", (w, h), 0)


def _written(rng: np.random.Generator, width: float) -> Cell:
    """An invented letter: a few strokes and arcs."""
    w, h = CELL * SCALE, 2 * CELL * SCALE
    image = Image.new("L", (w, h), 0)
    pen = ImageDraw.Draw(image)
    thick = max(2, round(width * h))
    at = rng.uniform([0.1, 0.2], [0.9, 0.8])
    for _ in range(int(rng.integers(2, 5))):
        to = np.clip(rng.uniform([0.08, 0.18], [0.92, 0.82]), 0, 1)
        if rng.random() < 0.6:
            pen.line([(at[0] * w, at[1] * h), (to[0] * w, to[1] * h)], fill=255, width=thick)
        else:
            low, high = np.minimum(at, to), np.maximum(at, to) + 0.12
            start = float(rng.uniform(0, 360))
            pen.arc(
                [low[0] * w, low[1] * h, high[0] * w, high[1] * h],
                start,
                start + float(rng.uniform(120, 320)),
                255,
                thick,
            )
        at = to
    return image, Image.new("L", (w, h), 0)


def _symbol(i: int) -> Image.Image:
    w, h = CELL * SCALE, 2 * CELL * SCALE
    image = Image.new("L", (w, h), 0)
    pen = ImageDraw.Draw(image)
    box = (w * 0.06, h * 0.5 - w * 0.44, w * 0.94, h * 0.5 + w * 0.44)
    if i == 0:
        pen.ellipse(box, fill=255)
    elif i == 1:
        pen.rectangle(box, fill=255)
    elif i == 2:
        pen.polygon([(w * 0.5, h * 0.26), (w * 0.95, h * 0.5), (w * 0.5, h * 0.74), (w * 0.05, h * 0.5)], fill=255)
    elif i == 3:
        pen.rectangle((w * 0.38, h * 0.3, w * 0.62, h * 0.7), fill=255)
        pen.rectangle((w * 0.08, h * 0.44, w * 0.92, h * 0.56), fill=255)
    else:
        pen.ellipse(box, outline=255, width=round(w * 0.16))
    return image
