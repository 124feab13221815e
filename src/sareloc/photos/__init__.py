"""Photo files: find them, read and write their geotags, decode them to upright RGB images."""

from sareloc.photos.addresses import Address, View, file_of, parse_address
from sareloc.photos.decoding import MAX_PIXELS, SizeRule, is_truncated, longest_side
from sareloc.photos.finding import (
    GeotaggedPhotos,
    fetch_file,
    find_geotagged,
    find_photos,
    find_remote_photos,
    is_url,
    read_geotag,
    read_time,
    remote_stamp,
)
from sareloc.photos.geotags import (
    DIAGONAL_35MM,
    Estimate,
    Geotag,
    UtmName,
    geotag_from_exif,
    make_utm_name,
    parse_utm_name,
    read_exif_geotag,
    read_focal_35mm,
)
from sareloc.photos.images import content_digest, decode, image_size, stamp
from sareloc.photos.panoramas import Panorama, looks_like_panorama, read_panorama
from sareloc.photos.tables import GeotagTable, parse_degrees, read_geotag_table
from sareloc.photos.views import ViewOptions, cut_view, panorama_pixels, views_of, write_views
from sareloc.photos.write_geotags import exif_bytes, jpeg_with_geotag, write_geotag, write_sidecar
from sareloc.photos.xmp import find_sidecar, read_sidecar_geotag, sidecar_path, sidecar_with_geotag

__all__ = [
    "DIAGONAL_35MM",
    "MAX_PIXELS",
    "Address",
    "Estimate",
    "Geotag",
    "GeotagTable",
    "GeotaggedPhotos",
    "Panorama",
    "SizeRule",
    "UtmName",
    "View",
    "ViewOptions",
    "content_digest",
    "cut_view",
    "decode",
    "exif_bytes",
    "fetch_file",
    "file_of",
    "find_geotagged",
    "find_photos",
    "find_remote_photos",
    "find_sidecar",
    "geotag_from_exif",
    "image_size",
    "is_truncated",
    "is_url",
    "jpeg_with_geotag",
    "longest_side",
    "looks_like_panorama",
    "make_utm_name",
    "panorama_pixels",
    "parse_address",
    "parse_degrees",
    "parse_utm_name",
    "read_exif_geotag",
    "read_focal_35mm",
    "read_geotag",
    "read_geotag_table",
    "read_panorama",
    "read_sidecar_geotag",
    "read_time",
    "remote_stamp",
    "sidecar_path",
    "sidecar_with_geotag",
    "stamp",
    "views_of",
    "write_geotag",
    "write_sidecar",
    "write_views",
]
