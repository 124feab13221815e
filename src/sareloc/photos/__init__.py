"""Photo files: find them, read and write their geotags, decode them to upright RGB images."""

from sareloc.photos.addresses import Address, View, file_of, parse_address
from sareloc.photos.clock import ClockOffset, estimate_offset, parse_offset, parse_timezone
from sareloc.photos.decoding import MAX_PIXELS, Interpolation, Resizing, SizeRule, is_truncated, longest_side, resized
from sareloc.photos.finding import (
    SOURCES,
    GeotaggedPhotos,
    fetch_file,
    find_geotag,
    find_geotagged,
    find_photos,
    find_remote_photos,
    is_url,
    read_geotag,
    read_geotags,
    read_time,
    remote_stamp,
)
from sareloc.photos.geotags import (
    DIAGONAL_35MM,
    Estimate,
    Geotag,
    PhotoTime,
    UtmName,
    geotag_from_exif,
    make_utm_name,
    parse_utm_name,
    read_exif_geotag,
    read_exif_time,
    read_focal_35mm,
)
from sareloc.photos.panoramas import Panorama, looks_like_panorama, read_panorama
from sareloc.photos.read_image import ReadImage, content_digest, decode, image_size, read_image, stamp
from sareloc.photos.record import Image, ImageRecord, record_of
from sareloc.photos.sidecars import find_takeout_json, read_takeout_geotag
from sareloc.photos.tables import GeotagTable, parse_degrees, read_geotag_table
from sareloc.photos.track_geotags import PlacedPhoto, TrackOptions, TrackReport, geotags_from_track
from sareloc.photos.tracks import MAX_GAP_S, Track, TrackPositions, merge_tracks, read_track, read_tracks
from sareloc.photos.video_geotags import FramesReport, frames_on_track
from sareloc.photos.videos import Video, decode_frame, frame_times, is_video, read_video, video_frames
from sareloc.photos.views import ViewOptions, cut_view, panorama_pixels, views_of, write_views
from sareloc.photos.write_geotags import exif_bytes, jpeg_with_geotag, write_geotag, write_sidecar
from sareloc.photos.xmp import (
    find_sidecar,
    read_embedded_geotag,
    read_sidecar_geotag,
    sidecar_path,
    sidecar_with_geotag,
)

PhotoSource = ImageRecord
"""The name of `ImageRecord` before version 0.2."""

__all__ = [
    "DIAGONAL_35MM",
    "MAX_GAP_S",
    "MAX_PIXELS",
    "SOURCES",
    "Address",
    "ClockOffset",
    "Estimate",
    "FramesReport",
    "Geotag",
    "GeotagTable",
    "GeotaggedPhotos",
    "Image",
    "ImageRecord",
    "Interpolation",
    "Panorama",
    "PhotoSource",
    "PhotoTime",
    "PlacedPhoto",
    "ReadImage",
    "Resizing",
    "SizeRule",
    "Track",
    "TrackOptions",
    "TrackPositions",
    "TrackReport",
    "UtmName",
    "Video",
    "View",
    "ViewOptions",
    "content_digest",
    "cut_view",
    "decode",
    "decode_frame",
    "estimate_offset",
    "exif_bytes",
    "fetch_file",
    "file_of",
    "find_geotag",
    "find_geotagged",
    "find_photos",
    "find_remote_photos",
    "find_sidecar",
    "find_takeout_json",
    "frame_times",
    "frames_on_track",
    "geotag_from_exif",
    "geotags_from_track",
    "image_size",
    "is_truncated",
    "is_url",
    "is_video",
    "jpeg_with_geotag",
    "longest_side",
    "looks_like_panorama",
    "make_utm_name",
    "merge_tracks",
    "panorama_pixels",
    "parse_address",
    "parse_degrees",
    "parse_offset",
    "parse_timezone",
    "parse_utm_name",
    "read_embedded_geotag",
    "read_exif_geotag",
    "read_exif_time",
    "read_focal_35mm",
    "read_geotag",
    "read_geotag_table",
    "read_geotags",
    "read_image",
    "read_panorama",
    "read_sidecar_geotag",
    "read_takeout_geotag",
    "read_time",
    "read_track",
    "read_tracks",
    "read_video",
    "record_of",
    "remote_stamp",
    "resized",
    "sidecar_path",
    "sidecar_with_geotag",
    "stamp",
    "video_frames",
    "views_of",
    "write_geotag",
    "write_sidecar",
    "write_views",
]
