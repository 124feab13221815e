"""Building styles and colours. Style colours are sRGB hex strings, converted to linear RGB by `linear`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sareloc.arrays import Floats


@dataclass(frozen=True)
class Style:
    """Parameters of the houses of one style; lengths in metres."""

    walls: tuple[str, ...]
    trims: tuple[str, ...]
    accents: tuple[str, ...]
    roofs: tuple[str, ...]
    bay: float
    """Distance between two windows of a floor."""
    floor: float
    floors: tuple[int, int]
    window: float
    """Half the width of a window's opening."""
    sill: float
    head: float
    """Heights of the lower and upper edge of a window above its floor."""
    arch: float = 0.0
    """Rise of the window's arch."""
    panes: tuple[int, int] = (2, 2)
    surround: float = 0.0
    shutter: float = 0.0
    band: float = 0.0
    """Height of the string course that marks each floor."""
    pilaster: float = 0.0
    brick: float = 0.0
    ashlar: float = 0.0
    """Weights of the brick and cut-stone textures; the rest is plaster."""
    balcony: float = 0.0
    """The fraction of floors with balcony rails; negative: solid balustrades."""
    cornice: float = 0.4
    pitch: float = 0.0
    """Slope of the roof; 0: a flat roof behind a parapet."""
    gable: float = 0.0
    """The fraction of houses with a gable on the street."""
    shop: float = 0.5
    """The fraction of houses with shops on the ground floor."""


@dataclass(frozen=True)
class Surface:
    """The walls of one house: masonry, and how it has aged; lengths in metres."""

    masonry: float
    """Weight of the masonry; the rest is plaster, through which it shows where plaster has fallen."""
    course: float
    block: float
    """Height and length of a brick or stone."""
    bond: float
    """Shift of each course against the one below, as a fraction of a block."""
    tone: float
    """Spread of the brightness of the blocks."""
    joint: float
    """Half width of the joints."""
    mortar: float
    """Brightness of the joints relative to the blocks."""
    rough: float
    """Deviation of the joints from straight lines."""
    odd: float
    """The fraction of blocks of the trim's colour."""
    stain_u: float
    stain_v: float
    stain_m: float
    """Offset and size of the noise of the stains."""
    grime: float
    streak: float
    patch: float
    """How dark stains and streaks of rain are; the level of noise above which the wall was repaired or has lost its
    plaster."""
    plinth: float
    """Height of the base of another colour."""
    pipe: float
    cable: float
    """Position of a downpipe from the left edge, and height of a cable; negative: none."""


@dataclass(frozen=True)
class Habits:
    """How the windows of one house differ from each other: fractions of windows, lengths in metres."""

    jitter: float
    """Largest deviation of position and size."""
    wide: float
    """Columns of wider windows."""
    blind: float
    """Walled-up windows."""
    attic: float
    """How much lower the windows of the top floor are."""
    frame: float
    """Half width of frames and glazing bars."""
    painted: float
    """1 if frames have the accent's colour, 0 if the trim's."""
    renewed: float
    """Windows with a single pane."""
    closed: float
    """Closed shutters or roller blinds."""
    cloth: float
    """Windows with curtains."""
    flowers: float
    cooler: float
    """Windows with flower boxes, and with an air conditioner below."""
    rail: float
    """Distance between the bars of balcony rails."""


STYLES: dict[str, Style] = {
    "boulevard": Style(
        ("d9cdb4", "cfc1a4", "e2d8c3"), ("efe7d6",), ("3a3f45", "54483c"), ("5b6570", "4c535c"),
        bay=2.5, floor=3.2, floors=(4, 6), window=0.56, sill=0.25, head=2.55, panes=(2, 3), surround=0.14, band=0.16,
        ashlar=0.8, balcony=0.45, cornice=0.5, pitch=1.1, shop=0.85,
    ),
    "brick terrace": Style(
        ("8a4b3a", "9a5a45", "7b4638"), ("e8e2d5", "d9d2c4"), ("24382f", "5c1f23", "1f2d4a"), ("3f3a3c",),
        bay=2.7, floor=3.0, floors=(2, 4), window=0.55, sill=0.8, head=2.4, panes=(2, 2), surround=0.1, brick=1.0,
        cornice=0.55, shop=0.3,
    ),
    "plaster": Style(
        ("e4c68a", "d98f6c", "b9c7a3", "e8d9c0", "c9a7a0"), ("f2ede2",), ("4f6b4a", "5a4632", "3f5f7a"),
        ("9c4f36", "a85c3f"),
        bay=2.9, floor=3.0, floors=(2, 4), window=0.5, sill=0.75, head=2.3, panes=(2, 3), surround=0.08, shutter=0.42,
        cornice=0.25, pitch=0.62, gable=0.15, shop=0.45,
    ),
    "concrete": Style(
        ("a8a59d", "b6b2a8", "93918c"), ("c9c6bd",), ("6a7f8c", "a05a3c", "b8a13f"), ("6d6d6b",),
        bay=3.6, floor=2.9, floors=(4, 7), window=1.35, sill=0.9, head=2.35, panes=(3, 1), band=0.3, balcony=-0.4,
        cornice=0.15, shop=0.5,
    ),
    "office": Style(
        ("4b5660", "39424b", "6b7680"), ("9aa5ad",), ("2c343b",), ("55585a",),
        bay=1.6, floor=3.5, floors=(4, 7), window=0.72, sill=0.12, head=3.3, panes=(1, 2), band=0.1, cornice=0.2,
        shop=0.7,
    ),
    "warehouse": Style(
        ("7c4a38", "6e4234", "93604a"), ("b7a48c",), ("2d3133", "37443a"), ("4a4644",),
        bay=3.4, floor=3.8, floors=(2, 4), window=1.05, sill=0.7, head=3.0, arch=0.45, panes=(4, 4), pilaster=0.3,
        brick=1.0, cornice=0.6, shop=0.4,
    ),
    "render": Style(
        ("e9e6df", "d8d9d6", "efe9dc"), ("c4c2bb", "8f9294"), ("33383c", "7d3b30"), ("77736d",),
        bay=3.2, floor=3.0, floors=(3, 5), window=0.95, sill=0.55, head=2.4, panes=(3, 1), balcony=0.5, cornice=0.2,
        shop=0.4,
    ),
    "timber": Style(
        ("ece3cf", "e6d6b8", "dcc9a6"), ("4a3426", "3d2b20"), ("5b2c22", "35503c"), ("8b4a35", "7a4334"),
        bay=1.9, floor=2.7, floors=(2, 3), window=0.42, sill=0.85, head=2.1, panes=(2, 3), band=0.18, pilaster=0.09,
        cornice=0.15, pitch=0.9, gable=0.6, shop=0.55,
    ),
    "sandstone": Style(
        ("b59a72", "a88b66", "c2a983"), ("cbb48d",), ("33261f", "26384a"), ("565453",),
        bay=2.6, floor=3.3, floors=(3, 4), window=0.6, sill=0.65, head=2.6, arch=0.25, panes=(1, 2), surround=0.2,
        band=0.22, ashlar=1.0, cornice=0.7, shop=0.5,
    ),
    "new brick": Style(
        ("a9a29a", "b58d70", "5f5a58"), ("3a3d40",), ("2e3236", "8a8f8c"), ("5c5c5c",),
        bay=3.0, floor=2.9, floors=(4, 6), window=0.7, sill=0.2, head=2.45, panes=(2, 1), brick=0.9, balcony=0.6,
        cornice=0.1, shop=0.35,
    ),
}  # fmt: skip

SIGN_COLOURS = ("1d3557", "9b2226", "0b6e4f", "f2cc3f", "101010", "f4f1ea", "6a4c93", "e76f51", "2a9d8f", "5c3d2e")
CAR_COLOURS = ("e8e8e8", "101214", "5c6166", "9ea3a8", "7a1519", "16325c", "2f4a3a", "c9b98a", "b5501b", "d9dde0")
CLOTHES = ("20242a", "3b4c6b", "7a2e2e", "c8c2b4", "4d5a40", "b08a2e", "6d5a7a", "e6e2da", "2b2b2b", "8c6b4f")


def vary(rng: np.random.Generator, style: Style) -> Style:
    """The style with the measures of one builder: all differ a little from those of others."""

    def about(value: float, spread: float) -> float:
        return value * float(rng.uniform(1 - spread, 1 + spread))

    bay = about(style.bay, 0.14)
    floor = about(style.floor, 0.07)
    sill = max(0.1, style.sill + float(rng.uniform(-0.18, 0.18)))
    return replace(
        style,
        bay=bay,
        floor=floor,
        window=min(about(style.window, 0.2), 0.5 * bay - 0.1),
        sill=sill,
        head=min(style.head + float(rng.uniform(-0.15, 0.2)), floor - 0.2),
        arch=style.arch * float(rng.uniform(0.4, 1.3)) if style.arch else float(rng.choice([0, 0, 0, 0, 0.08, 0.16])),
        panes=(
            max(1, style.panes[0] + int(rng.choice([-1, 0, 0, 1]))),
            max(1, style.panes[1] + int(rng.choice([-1, 0, 0, 1]))),
        ),
        surround=about(style.surround, 0.5) if rng.random() < 0.75 else float(rng.uniform(0, 0.2)),
        shutter=about(style.shutter, 0.25) if rng.random() < 0.8 else 0.0,
        band=about(style.band, 0.5) if rng.random() < 0.75 else 0.0,
        pilaster=about(style.pilaster, 0.4),
        balcony=style.balcony * float(rng.uniform(0.3, 1.6)),
        cornice=about(style.cornice, 0.4),
        pitch=about(style.pitch, 0.15),
    )


def weather_surface(rng: np.random.Generator, brick: float, ashlar: float, width_m: float) -> Surface:
    """The surface of a house with this share of brick and of cut stone, and this width of its front."""
    stone = ashlar > brick
    rubble = stone and rng.random() < 0.25
    return Surface(
        masonry=max(brick, ashlar),
        course=float(rng.uniform(0.24, 0.52) if stone else rng.uniform(0.062, 0.1)),
        block=float(rng.uniform(0.4, 1.0) if stone else rng.uniform(0.19, 0.31)),
        bond=float(rng.choice([0.5, 0.5, 0.33, 0.25, 0.618, 0.382])),
        tone=float(rng.uniform(0.08, 0.3) if stone else rng.uniform(0.15, 0.6)),
        joint=float(rng.uniform(0.006, 0.014) if stone else rng.uniform(0.004, 0.008)),
        mortar=float(rng.uniform(0.5, 0.85) if stone else rng.uniform(0.5, 1.5)),
        rough=float(rng.uniform(0.1, 0.3) if rubble else rng.uniform(0.0, 0.02)),
        odd=float(rng.choice([0.0, 0.0, 0.04, 0.12]) * rng.uniform(0.5, 1.5)),
        stain_u=float(rng.random()),
        stain_v=float(rng.random()),
        stain_m=float(rng.uniform(11.0, 24.0)),
        grime=float(rng.uniform(0.2, 1.0)),
        streak=float(rng.uniform(0.1, 0.8)),
        patch=float(rng.uniform(0.55, 0.95)),
        plinth=float(rng.choice([0.0, rng.uniform(0.3, 1.1)])),
        pipe=float(rng.choice([-9.0, rng.uniform(0.1, 0.35), width_m - rng.uniform(0.1, 0.35)])),
        cable=float(rng.choice([-9.0, rng.uniform(2.6, 4.6), rng.uniform(4.6, 9.0)])),
    )


def make_habits(rng: np.random.Generator, style: Style) -> Habits:
    """How the windows of one house of a style differ; those of old houses more than those of new ones."""
    old = style.arch > 0 or style.shutter > 0 or style.pitch > 0 or style.ashlar > 0
    return Habits(
        jitter=float(rng.uniform(0.03, 0.16) if old else rng.uniform(0.01, 0.07)),
        wide=float(rng.choice([0.0, 0.2, 0.4])),
        blind=float(rng.choice([0.0, 0.03, 0.12])),
        attic=float(rng.choice([0.0, 0.0, 0.3, 0.6])),
        frame=float(rng.uniform(0.025, 0.065)),
        painted=float(rng.random() < 0.4),
        renewed=float(rng.uniform(0.0, 0.5)),
        closed=float(rng.uniform(0.0, 0.35)),
        cloth=float(rng.uniform(0.3, 0.95)),
        flowers=float(rng.choice([0.0, 0.08, 0.3])),
        cooler=float(rng.choice([0.0, 0.0, 0.12, 0.3])),
        rail=float(rng.uniform(0.09, 0.19)),
    )


def shift_colour(rng: np.random.Generator, colour: str, spread: float = 0.09) -> str:
    """A colour of the same paint from another bucket: brightness and hue differ a little."""
    srgb = np.array(list(bytes.fromhex(colour))) * np.exp(rng.normal(0, spread))
    srgb = np.clip(srgb * np.exp(rng.normal(0, 0.4 * spread, 3)), 4, 250).astype(int)
    return bytes(srgb.tolist()).hex()


def linear(colour: str) -> Floats:
    """Linear RGB in [0, 1] of an sRGB colour such as "8a4b3a"."""
    srgb = np.array(list(bytes.fromhex(colour))) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


PALETTE: dict[str, tuple[float, float, float]] = {
    "lamplight": (1.0, 0.66, 0.34),
    "warm room": (1.0, 0.62, 0.28),
    "cold room": (0.85, 0.92, 1.0),
    "dark room": (0.05, 0.048, 0.045),
    "curtain": (0.55, 0.53, 0.48),
    "bare brick": (0.3, 0.13, 0.085),
    "fresh plaster": (0.5, 0.49, 0.46),
    "leaves": (0.06, 0.13, 0.03),
    "metal": (0.42, 0.43, 0.43),
    "iron": (0.02, 0.021, 0.024),
    "car window": (0.015, 0.016, 0.018),
    "asphalt": (0.085, 0.087, 0.09),
    "paving": (0.3, 0.285, 0.265),
    "kerb": (0.36, 0.35, 0.34),
    "road paint": (0.6, 0.59, 0.56),
    "grass": (0.075, 0.13, 0.035),
    "dry grass": (0.17, 0.15, 0.07),
    "snow": (0.8, 0.82, 0.86),
}
"""Linear colours that all towns share."""
