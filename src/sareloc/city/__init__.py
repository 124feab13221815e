"""A synthetic city, rendered from a seed: photos with exact positions, for tests, demos and training without a dataset.

A seed gives streets, blocks and houses of a few styles, so that places look alike; shop signs and posters, which
distinguish them; and visits at different times with sun, night, rain, fog, snow, cars and people. `city_places` gives
the dataset without files, `draw_places` writes it to disk, as perspective or 360° photos, `draw_drive` writes a video
with a GPX track, `draw` renders views.
"""

from sareloc.city.dataset import (
    CityPlaces,
    city_places,
    draw_pixels,
    draw_places,
    geotags,
    gpano_xmp,
    panorama_height,
    panorama_poses,
    photo_names,
)
from sareloc.city.drive import Drive, draw_drive, draw_frames, make_drive
from sareloc.city.geometry import Poses, project
from sareloc.city.moment import WEATHER, Moment, make_moment
from sareloc.city.render import draw, draw_scene
from sareloc.city.scene import Scene, make_scene
from sareloc.city.town import SIZES, SPLITS, Size, Town, Views, make_town, make_views, split_seed

__all__ = [
    "SIZES",
    "SPLITS",
    "WEATHER",
    "CityPlaces",
    "Drive",
    "Moment",
    "Poses",
    "Scene",
    "Size",
    "Town",
    "Views",
    "city_places",
    "draw",
    "draw_drive",
    "draw_frames",
    "draw_pixels",
    "draw_places",
    "draw_scene",
    "geotags",
    "gpano_xmp",
    "make_drive",
    "make_moment",
    "make_scene",
    "make_town",
    "make_views",
    "panorama_height",
    "panorama_poses",
    "photo_names",
    "project",
    "split_seed",
]
