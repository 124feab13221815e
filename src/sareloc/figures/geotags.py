"""The page of suspicious geotags: each photo beside those that agree with it and those around its geotag."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sareloc.adapt import GeotagCheck, SuspiciousGeotag
from sareloc.figures.matches import THUMBNAIL_PX, load_thumbnail
from sareloc.figures.report import facts, html_table, page, paragraph, photo_tiles, provenance, section, tile
from sareloc.files import write_atomically
from sareloc.localize import Match

TILES = 3  # of each kind, beside the photo


def write_geotag_page(out: Path | str, found: GeotagCheck, folder: Path, *, title: str = "Suspicious geotags") -> Path:
    """Write one self-contained HTML page of the photos whose geotags geometry contradicts.

    Args:
        out: the HTML file.
        found: the photos.
        folder: of the map, to which its photos are relative.
        title: of the page.
    """
    words = (
        f"{len(found.suspicious):,} of {found.photos:,} photos show another place than their geotag names; "
        f"{found.compared:,} agree with at least one other photo, and could be checked."
    )
    rows = [
        [one.photo, _degrees(one.latlon), _degrees(one.suggested), f"{one.away_m:,.0f} m", f"{one.confidence:.2f}"]
        for one in found.suspicious
    ]
    sections = [paragraph(words)]
    if rows:
        columns = ["photo", "geotag", "suggested position", "distance", "confidence"]
        sections += [section("Positions", html_table(columns, rows))]
        sections += [section("Photos", *(_photo(one, folder) for one in found.suspicious))]
    sections.append(section("Provenance", facts(provenance())))
    return write_atomically(Path(out), page(title, sections).encode(errors="backslashreplace"))


def _photo(one: SuspiciousGeotag, folder: Path) -> str:
    tiles = [tile(load_thumbnail(folder / one.photo, THUMBNAIL_PX), "the photo")]
    tiles += _tiles(one.witnesses, folder, "at the suggested position", "right")
    tiles += _tiles(one.near, folder, "near the geotag", "wrong")
    return photo_tiles(f"{one.photo}: {one.away_m:,.0f} m from its geotag", tiles)


def _tiles(matches: Sequence[Match], folder: Path, where: str, kind: str) -> list[str]:
    return [
        tile(load_thumbnail(folder / match.photo, THUMBNAIL_PX), f"{where}: {match.inliers} inliers", kind)
        for match in matches[:TILES]
    ]


def _degrees(latlon: tuple[float, float]) -> str:
    return f"{latlon[0]:.5f}, {latlon[1]:.5f}"
