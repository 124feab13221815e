"""The drawn city: streets that no camera has seen, for everybody who has no dataset.

From a seed come streets, blocks and houses of a few styles, so that places look alike; shop signs and posters that tell
them apart; and visits: sun, night, rain, fog, snow, cars and people in the way. Positions are exact.
"""

from sareloc.city.dataset import CityPlaces, city_places, draw_pixels, draw_places
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
