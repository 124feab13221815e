"""The drawn city: streets that no camera has seen, for everybody who has no dataset.

From a seed come streets, blocks and houses of a few styles, so that places look alike; shop signs and posters that tell
them apart; and visits: sun, night, rain, fog, snow, cars and people in the way. Positions are exact.
"""

from sareloc.datasets.city.camera import Poses, project
from sareloc.datasets.city.drawing import draw, draw_scene
from sareloc.datasets.city.moment import WEATHER, Moment, make_moment
from sareloc.datasets.city.places import CityPlaces, city_places, draw_pixels
from sareloc.datasets.city.scene import Scene, make_scene
from sareloc.datasets.city.town import SIZES, SPLITS, Size, Town, make_town, split_seed
from sareloc.datasets.city.views import Views, make_views
from sareloc.datasets.city.write import draw_places

__all__ = [
    "SIZES",
    "SPLITS",
    "WEATHER",
    "CityPlaces",
    "Moment",
    "Poses",
    "Scene",
    "Size",
    "Town",
    "Views",
    "city_places",
    "draw",
    "draw_pixels",
    "draw_places",
    "draw_scene",
    "make_moment",
    "make_scene",
    "make_town",
    "make_views",
    "project",
    "split_seed",
]
