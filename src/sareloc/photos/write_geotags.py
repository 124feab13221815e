"""Writing geotags: into the EXIF of JPEG, PNG, WebP and TIFF without re-encoding, XMP sidecars, views of a 360° photo.

Of a photo only the EXIF block changes (`sareloc.photos.containers`). The other EXIF fields keep their bytes and
offsets, so that offsets inside maker notes stay valid: the new GPS directory, and a first directory that points to it,
are appended to the block.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import struct
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

from PIL import Image
from PIL.ExifTags import GPS, IFD, Base

from sareloc.errors import PhotoError
from sareloc.files import open_regular, replacing, write_atomically
from sareloc.photos.containers import EXIF, NO_TAGS, change_exif, file_kind
from sareloc.photos.decoding import read_photo
from sareloc.photos.finding import read_geotag
from sareloc.photos.geotags import view_focal_35mm
from sareloc.photos.panoramas import ViewOptions, cut_view, matching_size, panorama_from, panorama_pixels, views_of
from sareloc.photos.photo_file import open_file, read_bytes, read_metadata
from sareloc.photos.raw import TIFF
from sareloc.photos.record import EPOCH, ESTIMATE_FIELDS, NOT_MEASURED, Address, Estimate, Geotag, View
from sareloc.photos.xmp import PlaceTags, sidecar_with_geotag

BYTE, ASCII, LONG, RATIONAL, UNDEFINED = 1, 2, 4, 5, 7
ITEM_BYTES = {BYTE: 1, ASCII: 1, LONG: 4, RATIONAL: 8, UNDEFINED: 1}
SECOND_PARTS = 10_000_000  # of an arc second: 3 micrometres on the ground, and 60 seconds still fit 32 bits
JPEG_QUALITY = 92  # of views
TIFF_SUFFIXES = (".tif", ".tiff")

Field = tuple[int, bytes]
"""An EXIF type and the value's bytes."""


def exif_bytes(geotag: Geotag | None, *, focal_35mm: float | None = None) -> bytes:
    """An EXIF block with only the geotag (None: without one), for Pillow's `save(..., exif=...)`.

    focal_35mm: the 35 mm equivalent focal length in mm, which EXIF stores as an integer; default: none.
    """
    tags = NO_TAGS
    if focal_35mm is not None:
        block = Image.Exif()
        block.get_ifd(IFD.Exif)[Base.FocalLengthIn35mmFilm] = round(focal_35mm)
        tags = block.tobytes().removeprefix(EXIF)
    return EXIF + (tags if geotag is None else with_gps(tags, geotag))


def write_geotag(photo: str | Path, target: str | Path, geotag: Geotag, estimate: Estimate | None = None) -> None:
    """Copy a JPEG, PNG, WebP or TIFF with this geotag in its EXIF.

    Image data, other metadata, GPS fields that the geotag does not set, and the file's times are unchanged; how the
    former position was determined (GPSHPositioningError, GPSAreaInformation, GPSProcessingMethod) is removed.

    Args:
        photo: a file that `takes_exif`.
        target: path of the copy; may be the same file.
        geotag: position, heading and time.
        estimate: marks the position as an estimate, by GPSHPositioningError and GPSAreaInformation.

    Raises:
        PhotoError: if the photo is of another format, or is damaged, or its EXIF is damaged or full.
        OSError: if the target cannot be written; it is then unchanged.
    """
    try:
        with open_file(photo, str(photo)) as file:
            status = os.stat(photo)  # before reading, which changes it
            content = file.read()
    except OSError as error:
        raise PhotoError(photo, f"cannot be read: {error.strerror}") from error
    if not _writable(photo, content[:12]):
        raise PhotoError(photo, "not a JPEG, PNG, WebP or TIFF: write the geotag of other formats with write_sidecar")
    tagged = photo_with_geotag(content, geotag, estimate, name=str(photo))
    with replacing(target) as temporary:
        temporary.write_bytes(tagged)
        keep_status(status, temporary)


def keep_status(status: os.stat_result, file: Path) -> None:
    """Give a file these permissions and times, where the file system has them."""
    with suppress(PermissionError):  # a file system without permissions (FAT)
        os.chmod(file, stat.S_IMODE(status.st_mode))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def write_sidecar(
    photo: str | Path,
    sidecar: str | Path,
    geotag: Geotag,
    estimate: Estimate | None = None,
    *,
    copy: str | Path | None = None,
    place: PlaceTags | None = None,
) -> None:
    """Write an XMP sidecar with this geotag and the other content of the photo's sidecar; the photo is unchanged.

    Args:
        photo: the photo.
        sidecar: path of the sidecar.
        geotag: position, heading and time.
        estimate: marks the position as an estimate.
        copy: also copy the photo to this path; both files are written or none.
        place: names of the place; default: none.

    Raises:
        PhotoError: if the photo's sidecar is not valid XMP.
        OSError: if a file cannot be written.
    """
    content = sidecar_with_geotag(photo, geotag, estimate, place)
    with ExitStack() as files:
        if copy is not None:
            temporary = files.enter_context(replacing(copy))
            with open_file(photo, str(photo)) as original, temporary.open("wb") as copied:
                status = os.stat(photo)
                shutil.copyfileobj(original, copied)
            keep_status(status, temporary)
        files.enter_context(replacing(sidecar)).write_bytes(content)


def write_views(
    source: str | Path, out: str | Path, options: ViewOptions, *, assume: bool = False
) -> tuple[tuple[Path, ...], tuple[View, ...]]:
    """Cut a 360° photo into views of exactly these options and write them as JPEGs, PHOTO_yaw030_pitch+00.jpg.

    Their EXIF has the photo's position, the view's heading and its focal length.

    Args:
        source: the 360° photo.
        out: folder.
        options: which views.
        assume: see `read_panorama`.

    Returns:
        The files, and the views left out because they are not inside a partial panorama.

    Raises:
        PhotoError: if the photo is not a 360° photo or shows none of the views.
    """
    source = Path(source)
    content = read_bytes(source, str(source))
    metadata = read_metadata(content, name=str(source))
    panorama = panorama_from(metadata, assume=assume, name=str(source))
    if panorama is None:
        raise PhotoError(
            source,
            "has no GPano tags, so that it is not known to be a 360° photo; --panorama treats a 2:1 photo as one",
        )
    views = views_of(panorama, options, enlarge=True)
    if not views:
        raise PhotoError(source, "shows none of these views: a partial panorama shows other directions")
    from tqdm import tqdm

    size = matching_size(panorama, views[0], views[0].height, views[0].width)
    pixels = panorama_pixels(read_photo(content, (size,), name=str(source))[1][0], panorama)
    written = []
    for view in tqdm(views, desc="views", unit="view", disable=None, leave=False):
        geotag = read_geotag(Address(source, view).path, metadata)
        image, file = Image.fromarray(cut_view(pixels, view, view.height, view.width)), io.BytesIO()
        exif = exif_bytes(geotag, focal_35mm=view_focal_35mm(view))
        image.save(file, format="JPEG", quality=JPEG_QUALITY, exif=exif)
        name = f"{source.stem}_yaw{view.yaw_deg:03g}_pitch{view.pitch_deg:+03g}.jpg"
        written.append(write_atomically(Path(out) / name, file.getvalue()))
    return tuple(written), tuple(view for view in options.views() if view not in views)


def takes_exif(photo: str | Path) -> bool:
    """Whether `write_geotag` can write into this file: JPEG, PNG, WebP, TIFF; False also if it cannot be read.

    Raw files of cameras, which are TIFF files with another extension, are not written.
    """
    try:
        with open_regular(photo) as file:
            return _writable(photo, file.read(12))
    except OSError:
        return False


def _writable(photo: str | Path, start: bytes) -> bool:
    kind = file_kind(start)
    return kind is not None and (kind != "tiff" or Path(photo).suffix.lower() in TIFF_SUFFIXES)


def photo_with_geotag(
    content: bytes, geotag: Geotag, estimate: Estimate | None = None, *, name: str = "the photo"
) -> bytes:
    """The bytes of a JPEG, PNG, WebP or TIFF with this geotag in its EXIF, otherwise unchanged.

    Args:
        content: of the file.
        geotag: position, heading and time.
        estimate: marks the position as an estimate.
        name: of the photo, for errors.

    Raises:
        PhotoError: if the photo is of another format, or is damaged, or its EXIF is damaged or full.
    """
    try:
        return change_exif(content, partial(with_gps, geotag=geotag, estimate=estimate))
    except (ValueError, OSError, SyntaxError) as error:
        raise PhotoError(name, f"the geotag cannot be written: {error}") from error


def with_gps(tiff: bytes, geotag: Geotag, estimate: Estimate | None = None) -> bytes:
    """An EXIF block (a TIFF header with directories) with the geotag's fields in its GPS directory."""
    order = TIFF.get(tiff[:4])
    if order is None or len(tiff) < 8:
        raise ValueError("its EXIF is damaged (no TIFF header)")
    first, following = _read_directory(tiff, order, struct.unpack_from(order + "I", tiff, 4)[0])
    gps: dict[int, bytes] = {}
    if IFD.GPSInfo in first:
        gps, _ = _read_directory(tiff, order, struct.unpack_from(order + "I", first[IFD.GPSInfo], 8)[0])
        for name in ESTIMATE_FIELDS:  # of the former position
            gps.pop(GPS[name], None)
    grown = tiff + b"\0" * (len(tiff) % 2)  # directories start at even offsets
    pointer = struct.pack(order + "I", len(grown))
    grown += _directory(order, len(grown), gps, _gps_fields(geotag, estimate, order), 0)
    start = struct.pack(order + "I", len(grown))
    grown += _directory(order, len(grown), first, {IFD.GPSInfo: (LONG, pointer)}, following)
    return grown[:4] + start + grown[8:]


def _gps_fields(geotag: Geotag, estimate: Estimate | None, order: str) -> dict[int, Field]:
    def rationals(*pairs: tuple[int, int]) -> Field:
        return RATIONAL, b"".join(struct.pack(order + "II", *pair) for pair in pairs)

    def angle(degrees: float) -> Field:
        minutes, seconds = divmod(round(abs(degrees) * 3600 * SECOND_PARTS), 60 * SECOND_PARTS)
        return rationals((minutes // 60, 1), (minutes % 60, 1), (seconds, SECOND_PARTS))

    latitude, longitude = geotag.latlon
    fields: dict[int, Field] = {
        GPS.GPSVersionID: (BYTE, bytes([2, 3, 0, 0])),
        GPS.GPSLatitudeRef: (ASCII, b"N\0" if latitude >= 0 else b"S\0"),
        GPS.GPSLatitude: angle(latitude),
        GPS.GPSLongitudeRef: (ASCII, b"E\0" if longitude >= 0 else b"W\0"),
        GPS.GPSLongitude: angle(longitude),
        GPS.GPSMapDatum: (ASCII, b"WGS-84\0"),
    }
    if geotag.heading_deg is not None:
        fields[GPS.GPSImgDirectionRef] = (ASCII, b"T\0")
        fields[GPS.GPSImgDirection] = rationals((round(geotag.heading_deg * 10**6), 10**6))
    if geotag.time is not None:
        moment = EPOCH + timedelta(seconds=geotag.time)
        seconds = (moment.second * 10**6 + moment.microsecond, 10**6)
        fields[GPS.GPSTimeStamp] = rationals((moment.hour, 1), (moment.minute, 1), seconds)
        fields[GPS.GPSDateStamp] = (ASCII, b"%04d:%02d:%02d\0" % (moment.year, moment.month, moment.day))
    if estimate is not None:
        fields[GPS.GPSHPositioningError] = rationals((round(estimate.radius_m * 100), 100))
        for tag, text in ((GPS.GPSAreaInformation, estimate.method), (GPS.GPSProcessingMethod, NOT_MEASURED)):
            fields[tag] = (UNDEFINED, b"ASCII\0\0\0" + text.encode("ascii", "replace"))
    return fields


def _read_directory(tiff: bytes, order: str, start: int) -> tuple[dict[int, bytes], int]:
    """The 12-byte entries of a directory by tag, and the offset of the directory that follows (0: none)."""
    try:
        (count,) = struct.unpack_from(order + "H", tiff, start)
        end = start + 2 + 12 * count
        (following,) = struct.unpack_from(order + "I", tiff, end)
    except struct.error:
        raise ValueError("its EXIF is damaged (a directory is outside the block)") from None
    entries = [tiff[at : at + 12] for at in range(start + 2, end, 12)]
    return {struct.unpack_from(order + "H", entry)[0]: entry for entry in entries}, following


def _directory(order: str, start: int, kept: dict[int, bytes], new: dict[int, Field], following: int) -> bytes:
    """The bytes of a directory at offset `start`: kept entries, with new fields in place of those of the same tag."""
    tags = sorted({*kept, *new})
    values_at = start + 2 + 12 * len(tags) + 4
    entries, values = b"", b""
    for tag in tags:
        if tag not in new:
            entries += kept[tag]
            continue
        kind, value = new[tag]
        inline = value.ljust(4, b"\0")
        if len(value) > 4:
            inline = struct.pack(order + "I", values_at + len(values))
            values += value + b"\0" * (len(value) % 2)
        entries += struct.pack(order + "HHI", tag, kind, len(value) // ITEM_BYTES[kind]) + inline
    return struct.pack(order + "H", len(tags)) + entries + struct.pack(order + "I", following) + values
