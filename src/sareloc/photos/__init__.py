"""Photo files: find them, read and write their geotags, decode them to upright RGB images."""

from typing import TYPE_CHECKING

from sareloc import lazy_names
from sareloc.photos.decoding import Interpolation, Resizing, SizeRule, is_truncated, longest_side, resized
from sareloc.photos.geotags import (
    DIAGONAL_35MM,
    PhotoTime,
    UtmName,
    geotag_from_exif,
    make_utm_name,
    parse_utm_name,
    read_exif_geotag,
    read_exif_time,
    read_focal_35mm,
)
from sareloc.photos.panoramas import (
    Panorama,
    ViewOptions,
    cut_view,
    looks_like_panorama,
    panorama_pixels,
    read_panorama,
    views_of,
)
from sareloc.photos.photo_file import MAX_PIXELS
from sareloc.photos.read_image import ReadImage, content_digest, decode, image_size, read_image, stamp
from sareloc.photos.record import (
    Address,
    Estimate,
    Geotag,
    Image,
    ImageRecord,
    PhotoSource,
    View,
    file_of,
    is_url,
    is_video,
    parse_address,
    record_of,
)
from sareloc.photos.xmp import (
    find_sidecar,
    read_embedded_geotag,
    read_sidecar_geotag,
    sidecar_path,
    sidecar_with_geotag,
)

if TYPE_CHECKING:
    from sareloc.photos.clock import ClockOffset, estimate_offset, parse_offset, parse_timezone
    from sareloc.photos.finding import (
        SOURCES,
        GeotaggedPhotos,
        fetch_file,
        find_geotag,
        find_geotagged,
        find_photos,
        find_remote_photos,
        read_geotag,
        read_geotags,
        read_time,
        remote_stamp,
    )
    from sareloc.photos.sidecars import find_takeout_json, read_takeout_geotag
    from sareloc.photos.tables import GeotagTable, parse_degrees, read_geotag_table
    from sareloc.photos.telemetry import Telemetry, read_telemetry
    from sareloc.photos.track_geotags import (
        FramesReport,
        PlacedPhoto,
        TrackOptions,
        TrackReport,
        frames_on_track,
        geotags_from_track,
    )
    from sareloc.photos.tracks import MAX_GAP_S, Track, TrackPositions, merge_tracks, read_track, read_tracks
    from sareloc.photos.videos import Video, decode_frame, frame_times, read_video, video_frames
    from sareloc.photos.write_geotags import exif_bytes, photo_with_geotag, write_geotag, write_sidecar, write_views

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
    "Telemetry",
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
    "photo_with_geotag",
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
    "read_telemetry",
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

__getattr__ = lazy_names(
    __name__,
    {
        "clock": "ClockOffset estimate_offset parse_offset parse_timezone",
        "finding": "SOURCES GeotaggedPhotos fetch_file find_geotag find_geotagged find_photos find_remote_photos "
        "read_geotag read_geotags read_time remote_stamp",
        "sidecars": "find_takeout_json read_takeout_geotag",
        "tables": "GeotagTable parse_degrees read_geotag_table",
        "telemetry": "Telemetry read_telemetry",
        "track_geotags": "FramesReport PlacedPhoto TrackOptions TrackReport frames_on_track geotags_from_track",
        "tracks": "MAX_GAP_S Track TrackPositions merge_tracks read_track read_tracks",
        "videos": "Video decode_frame frame_times read_video video_frames",
        "write_geotags": "exif_bytes photo_with_geotag write_geotag write_sidecar write_views",
    },
)
