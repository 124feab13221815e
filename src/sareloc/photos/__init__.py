"""Photo files: find them, read and write their geotags, decode them to upright RGB images."""

from sareloc.photos.decoding import MAX_PIXELS, SizeRule, decode, longest_side
from sareloc.photos.finding import GeotaggedPhotos, find_geotagged, find_photos, read_geotag, read_time
from sareloc.photos.geotags import Estimate, Geotag, UtmName, make_utm_name, parse_utm_name, read_exif_geotag
from sareloc.photos.tables import GeotagTable, read_geotag_table
from sareloc.photos.write_geotags import exif_bytes, write_geotag, write_sidecar

__all__ = [
    "MAX_PIXELS",
    "Estimate",
    "Geotag",
    "GeotagTable",
    "GeotaggedPhotos",
    "SizeRule",
    "UtmName",
    "decode",
    "exif_bytes",
    "find_geotagged",
    "find_photos",
    "longest_side",
    "make_utm_name",
    "parse_utm_name",
    "read_exif_geotag",
    "read_geotag",
    "read_geotag_table",
    "read_time",
    "write_geotag",
    "write_sidecar",
]
