"""The embedding view: neighbours stay neighbours, thumbnails never cover one another, places have their colours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from tests.figures.little_town import colour, photos

from sareloc.datasets import PhotoSet
from sareloc.errors import ArgumentError, MissingExtraError
from sareloc.figures import draw_embedding, place_labels, project_tsne, write_embedding_page
from sareloc.figures.embedding import THUMBNAIL, ZOOMS, fitting_zooms, place_colour


@pytest.fixture(scope="module")
def clusters() -> tuple[np.ndarray, np.ndarray]:
    """Four places of ten photos each: their descriptors, and where t-SNE puts them."""
    rng = np.random.default_rng(0)
    descriptors = np.repeat(rng.normal(size=(4, 16)), 10, axis=0) + 0.05 * rng.normal(size=(40, 16))
    return descriptors, project_tsne(descriptors, seed=1)


def test_photos_of_one_place_lie_together(clusters) -> None:
    _, points = clusters
    groups = points.reshape(4, 10, 2)
    middles = groups.mean(axis=1)
    spread = np.linalg.norm(groups - middles[:, None], axis=2).max()
    apart = min(np.linalg.norm(middles[a] - middles[b]) for a in range(4) for b in range(a))
    assert apart > 2 * spread
    assert points.min() >= 0
    assert points.max() <= 1
    assert np.ptp(points, axis=0).max() == pytest.approx(1)


def test_the_same_seed_gives_the_same_view(clusters) -> None:
    descriptors, points = clusters
    np.testing.assert_array_equal(project_tsne(descriptors, seed=1), points)


@pytest.mark.parametrize(
    ("descriptors", "complaint"),
    [
        (np.zeros((0, 4)), "descriptors has no values"),
        (np.ones((1, 4)), r"at least 5 descriptors \(N, D\): found \(1, 4\)"),
        (np.ones(7), r"found \(7,\)"),
        (np.full((9, 4), np.nan), "descriptors has nan"),
    ],
)
def test_too_little_to_embed_is_an_error(descriptors: np.ndarray, complaint: str) -> None:
    with pytest.raises(ArgumentError, match=complaint):
        project_tsne(descriptors)


def test_without_opentsne_the_pip_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openTSNE", None)
    with pytest.raises(MissingExtraError, match=r'openTSNE is not installed .*pip install "sareloc\[plot\]"'):
        project_tsne(np.eye(9))


@pytest.mark.parametrize("zooms", [(1.0,), ZOOMS])
def test_thumbnails_that_are_shown_never_overlap(zooms: tuple[float, ...]) -> None:
    points, size = np.random.default_rng(2).random((200, 2)), 0.07
    fits = fitting_zooms(points, size, zooms)
    for zoom in zooms:
        shown = points[fits <= zoom] * zoom
        gaps = np.abs(shown[:, None] - shown[None]).max(axis=2) + 9 * np.eye(len(shown))
        assert gaps.min() >= size
        hidden = points[fits > zoom] * zoom
        covered = np.abs(hidden[:, None] - shown[None]).max(axis=2).min(axis=1, initial=0 if not len(shown) else np.inf)
        assert (covered < size).all()  # nothing is a dot that had room to be a thumbnail


def test_a_figure_has_a_thumbnail_or_a_dot_for_every_photo() -> None:
    points = np.array([[0.1, 0.1], [0.11, 0.1], [0.9, 0.9], [0.5, 0.5]])
    images = [np.full((40, 60, 3), 10 * i, np.uint8) for i in range(3)]
    (axes,) = draw_embedding(points, [0, 0, 1, 2], [*images, None], size=0.1).axes
    thumbnails, dots = ([line for line in axes.lines if line.get_gid() == kind] for kind in ("thumbnail", "dot"))
    assert (len(thumbnails), len(dots), len(axes.images)) == (2, 2, 2)
    np.testing.assert_array_equal(axes.images[1].get_array(), images[2])
    left, right, bottom, top = axes.images[1].get_extent()
    assert ((left + right) / 2, (bottom + top) / 2) == pytest.approx((0.9, 0.9))
    assert (right - left) / (top - bottom) == pytest.approx(60 / 40)
    assert to_rgb(thumbnails[1].get_color()) == pytest.approx(place_colour(1))
    assert [text.get_text() for text in axes.texts] == ["0", "0", "1", "2"]  # the place can be read without its colour


def test_places_by_position(tmp_path: Path) -> None:
    near_and_far = photos(tmp_path / "a", [0, 0, 3, 0, 3, 5])
    assert place_labels(near_and_far).tolist() == [0, 0, 1, 0, 1, 2]


def test_photos_that_look_another_way_show_another_place(tmp_path: Path) -> None:
    around = photos(tmp_path / "a", [0, 0, 0, 0, 3])
    around = replace(around, headings_deg=np.array([350.0, 30.0, 90.0, np.nan, 350.0]))
    assert place_labels(around).tolist() == [0, 0, 1, 0, 2]


def test_places_by_id_come_first(tmp_path: Path) -> None:
    listed = PhotoSet(tmp_path, ("a", "b", "c"), place_ids=((70,), (4, 70), (70, 4)))
    assert place_labels(listed).tolist() == [0, 1, 0]
    with pytest.raises(ArgumentError, match="neither place ids nor positions"):
        place_labels(PhotoSet(tmp_path, ("a",)))


def test_neighbouring_places_differ_in_colour() -> None:
    colours = np.array([place_colour(place) for place in range(40)])
    assert np.linalg.norm(np.diff(colours, axis=0), axis=1).min() > 0.3
    assert len(np.unique(colours.round(3), axis=0)) == 40


def test_the_page_holds_every_photo_and_needs_no_network(tmp_path: Path) -> None:
    points = np.array([[0.1, 0.2], [0.9, 0.9], [0.5, 0.5]])
    images = [np.full((40, 60, 3), colour(1), np.uint8), None, np.full((40, 60, 3), colour(2), np.uint8)]
    names = ["a.jpg", "</script><b>", "c.jpg"]
    path = write_embedding_page(tmp_path / "view.html", points, [0, 1, 0], images, names, title="A <title>")
    page = path.read_text()
    inside = re.search(r'<script type="application/json" id="photos">(.*?)</script>', page, re.DOTALL)
    listed = json.loads(inside.group(1))
    assert [photo["name"] for photo in listed] == names
    assert (listed[0]["x"], listed[0]["y"]) == (0.1, 0.8)
    assert [photo["fit"] for photo in listed] == [1, None, 1]
    assert listed[0]["colour"] == listed[2]["colour"] != listed[1]["colour"]
    assert "A &lt;title&gt;" in page
    assert "3 photos, 2 places" in page
    assert not re.search(r'(src|href)="(?!data:)|url\(|https?://', page)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser: chromium is not installed")
def test_a_browser_shows_thumbnails_where_they_fit_and_more_of_them_on_zooming_in(tmp_path: Path) -> None:
    points = np.random.default_rng(3).random((60, 2))
    images = [np.full((40, 60, 3), colour(row % 6), np.uint8) for row in range(60)]
    path = write_embedding_page(tmp_path / "view.html", points, np.arange(60), images, [str(row) for row in range(60)])
    zoomed = tmp_path / "zoomed.html"
    zoomed.write_text(path.read_text().replace("\nshow();\n</script>", "\nzoomBy(3);\n</script>"))
    for page, zoom in ((path, 1), (zoomed, 3)):
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        done = subprocess.run([*command, "--dump-dom", page.as_uri()], check=True, capture_output=True, text=True)
        assert done.stdout.count('class="photo fits"') == (fitting_zooms(points, THUMBNAIL) <= zoom).sum()
        assert done.stdout.count('class="photo') == 60


def test_rows_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="2 points, 1 places"):
        draw_embedding([[0, 0], [1, 1]], [0], [None, None])
    with pytest.raises(ArgumentError, match="1 names"):
        write_embedding_page(tmp_path / "x.html", [[0, 0], [1, 1]], [0, 0], [None, None], ["a"])
