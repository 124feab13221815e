"""Hostile photos, sidecars, tracks, tables and videos, and paths that are no regular files."""

from __future__ import annotations

import io
import os
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tests.maps.small_town import build_map, geotag_of, gis, tiny_model, write_photo, write_town
from tests.photos.panorama_files import gpano_xmp
from tests.photos.telemetry_files import SCALES, add_track, camm5, device, gps5, klv
from tests.photos.video_files import write_video

from sareloc.errors import SarelocError
from sareloc.geo import distance_m
from sareloc.maps import add_local_features, verify_map
from sareloc.models import save_checkpoint
from sareloc.photos import (
    Geotag,
    content_digest,
    decode,
    exif_bytes,
    frame_times,
    read_geotag,
    read_geotag_table,
    read_panorama,
    read_telemetry,
    read_time,
    read_track,
    read_video,
    video_frames,
)

Case = tuple[str, str, Callable[[], str]]
NAMESPACE = gpano_xmp().decode()
ENCODINGS = ("nonsense", "zlib", "hex", "rot13", "base64", "utf-7")


def _declaring(name: str) -> str:
    return f'<?xml version="1.0" encoding="{name}"?>{NAMESPACE}'


def _many_attributes() -> str:
    return "".join(f' a{number:x}=""' for number in range(2_500_000))


PACKETS: dict[str, Callable[[], str]] = {  # made in the process of the case: they are large
    **{f"encoding {name}": partial(_declaring, name) for name in ENCODINGS},
    "7.7 million elements": lambda: NAMESPACE.replace("</rdf:RDF>", "<a/>" * 7_700_000 + "</rdf:RDF>"),
    "2.5 million attributes": lambda: NAMESPACE.replace("</rdf:RDF>", f"<a{_many_attributes()}/></rdf:RDF>"),
    "a million levels": lambda: NAMESPACE.replace("</rdf:RDF>", "<a>" * 1_000_000),
    "31 MB of text": lambda: NAMESPACE.replace("</rdf:RDF>", "\n" * 31_000_000 + "</rdf:RDF>"),
    "entities": lambda: "<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]>" + NAMESPACE,
}
GPX = '<?xml version="1.0" encoding="UTF-8"?><gpx><trk><trkseg>{}</trkseg></trk></gpx>'
TRACKS: dict[str, Callable[[], str]] = {
    "40 MB of empty elements": lambda: GPX.format("<a/>" * 10_000_000),
    "90 MB of line ends": lambda: GPX.format("\n" * 90_000_000),
    "a million levels": lambda: GPX.format("<a>" * 1_000_000),
    **{f"encoding {name}": partial(GPX.replace("UTF-8", name).format, "") for name in ENCODINGS},
}
TABLES: dict[str, Callable[[], str]] = {
    "a.csv": lambda: "file,lat,lon\na.jpg,1" + " " * 1_000_000 + "x,8\n",
    "deep.json": lambda: "[" * 10_000_000,
    "wide.json": lambda: "[" + "[]," * 30_000_000 + "[]]",
    "wide_small.json": lambda: "[" + "[]," * 15_000_000 + "[]]",
}


def cases(folder: Path) -> Iterator[Case]:
    """(kind, case, work): see `benchmarks.faults`."""
    for name in PACKETS:
        for suffix in (".webp", ".avif", ".png", ".xmp"):
            yield "hostile XMP", f"{name}, {suffix}", partial(_xmp, folder, name, suffix)
    for name in TRACKS:
        yield "hostile XMP", f"GPX: {name}", partial(_track, folder, name)
    yield "hostile XMP", "build, check and localize with one bad photo", partial(_one_bad_photo, folder)
    for name in TABLES:
        yield "hostile tables", name, partial(_table, folder, name)
    for name in SEGMENTS:
        yield "hostile photos", name, partial(_jpeg, folder, name)
    for name, make in VIDEOS.items():
        yield "hostile videos", name, partial(_video, folder, name, make)
    for name, (form, payload) in TELEMETRY.items():
        yield "hostile telemetry", name, partial(_telemetry, folder, form, payload)
    for name in SPECIAL:
        for use in USES:
            yield "special files", f"{name} as {use}", partial(_special, folder, name, use)
        yield "special files", f"{name} as sidecars", partial(_sidecars, folder, name)
        yield "special files", f"{name} as row of a map", partial(_map_row, folder, name)


def _xmp(folder: Path, name: str, suffix: str) -> str:
    """The position is in EXIF: it is found, whatever the XMP is."""
    photo, xmp = folder / f"photo{'.jpg' if suffix == '.xmp' else suffix}", PACKETS[name]().encode()
    image, exif = Image.new("RGB", (64, 32)), exif_bytes(geotag_of(1))
    if suffix == ".xmp":
        photo.with_suffix(".xmp").write_bytes(xmp)
        image.save(photo, exif=exif)
    elif suffix == ".png":
        chunks = PngInfo()
        chunks.add_itxt("XML:com.adobe.xmp", xmp.decode(), zip=True)
        image.save(photo, exif=exif, pnginfo=chunks)
    else:
        image.save(photo, exif=exif, xmp=xmp)
    with suppress(SarelocError):
        read_panorama(photo)
    decode(photo)
    read_time(photo)
    found = read_geotag(photo)
    return "right" if found is not None and _is_first(found) else "silently wrong"


def _is_first(geotag: Geotag) -> bool:
    return bool(distance_m(geotag.latlon, geotag_of(1).latlon) < 0.01)


def _track(folder: Path, name: str) -> str:
    (folder / "a.gpx").write_text(TRACKS[name]())
    read_track(folder / "a.gpx")
    return "silently wrong"


def _table(folder: Path, name: str) -> str:
    (folder / name).write_text(TABLES[name]())
    return "silently wrong" if read_geotag_table(folder / name).tags else "right"


def _run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sareloc", *map(str, words)], capture_output=True, text=True, timeout=100, check=False
    )


def _one_bad_photo(folder: Path) -> str:
    """Of four photos with a position, all are in the map; both queries get a position."""
    write_town(folder / "town", 3)
    bad = write_photo(folder / "town" / "bad.jpg", 4)
    Image.open(bad).save(bad, exif=exif_bytes(geotag_of(4)), xmp=PACKETS["encoding nonsense"]().encode())
    save_checkpoint(tiny_model(), folder / "model.safetensors")
    words = ("--model", folder / "model.safetensors", "--device", "cpu")
    runs = (
        _run("map", "build", folder / "town", "--out", folder / "town.gpkg", *words, "--keypoints", "0"),
        _run("data", "check", folder / "town", "--decode"),
        _run("localize", folder / "town.gpkg", folder / "town/0001.jpg", bad, *words, "--json"),
    )
    if any("Traceback" in run.stderr for run in runs):
        return "traceback"
    right = all(run.returncode == 0 for run in runs) and runs[2].stdout.count("\n") == 2
    return "right" if right and "4" in runs[0].stdout else "silently wrong"


def _segment(content: bytes) -> bytes:
    return b"\xff\xe1" + struct.pack(">H", len(content) + 2) + content


SEGMENTS: dict[str, Callable[[], bytes]] = {
    "10,000 EXIF segments": lambda: _segment(b"Exif\0\0" + bytes(6_000)) * 10_000,
    "300,000 EXIF segments": lambda: _segment(b"Exif\0\0" + bytes(100)) * 300_000,
    "10,000 XMP segments": lambda: _segment(b"http://ns.adobe.com/xap/1.0/\0" + bytes(6_000)) * 10_000,
    "100 MB between segments": lambda: b"\xff\xe1\0\x02" + bytes(100_000_000),
    "EXIF directory of itself": lambda: _segment(
        b"Exif\0\0II*\0\x08\0\0\0" + b"\x01\0\x69\x87\x04\0\x01\0\0\0\x08\0\0\0" * 2
    ),
}


def _jpeg(folder: Path, name: str) -> str:
    content = io.BytesIO()
    Image.new("RGB", (64, 32)).save(content, "JPEG")
    jpeg = content.getvalue()
    (folder / "a.jpg").write_bytes(jpeg[:2] + SEGMENTS[name]() + jpeg[2:])
    decode(folder / "a.jpg")
    return "right" if read_geotag(folder / "a.jpg") is None else "silently wrong"


def _aeons(path: Path) -> None:
    import av

    source = write_video(path.with_name("source.mkv"), [0, 40, 80], codec="mpeg4")
    with av.open(str(source)) as read, av.open(str(path), "w") as written:
        stream = written.add_stream_from_template(read.streams.video[0])
        for packet, time_s in zip([one for one in read.demux() if one.size], (0, 1, 3e9), strict=True):
            packet.stream = stream
            packet.pts = packet.dts = int(time_s / packet.time_base)
            written.mux(packet)


def _claims(path: Path, table: bytes, at: int, *values: int) -> None:
    options = {"movflags": "frag_keyframe+empty_moov"} if table == b"trun" else {}
    content = bytearray(write_video(path, [0, 40, 80], codec="mpeg4", options=options).read_bytes())
    struct.pack_into(f">{len(values)}I", content, content.index(table) + at, *values)
    if table == b"stsz":
        struct.pack_into(">3I", content, content.index(b"stsc") + 12, 1, values[1], 1)
    path.write_bytes(content)


def _sparse(path: Path) -> None:
    write_video(path, [0, 40, 80], codec="mpeg4")
    with path.open("r+b") as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        file.truncate(10**12)


def _large(path: Path) -> None:
    import av

    content = io.BytesIO()
    Image.new("L", (14_000, 14_000)).save(content, "JPEG", quality=5)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuvj420p"
        for number in range(5):
            packet = av.Packet(content.getvalue())
            packet.stream, packet.pts, packet.dts, packet.is_keyframe = stream, 40 * number, 40 * number, True
            container.mux(packet)


def _streams(path: Path) -> None:
    content = write_video(path, [0, 40, 80], codec="mpeg4").read_bytes()
    track, header = content.index(b"trak") - 4, content.index(b"moov") - 4
    size, length = (int.from_bytes(content[at : at + 4], "big") for at in (track, header))
    more = content[track : track + size] * 20_000
    grown = struct.pack(">I", length + len(more))
    path.write_bytes(content[:header] + grown + content[header + 4 : track + size] + more + content[track + size :])


VIDEOS: dict[str, Callable[[Path], None]] = {
    "frames 3e9 s apart.mkv": _aeons,
    "170 million samples.mp4": lambda path: _claims(path, b"stsz", 8, 1, 170_000_000),
    "170 million samples in a fragment.mp4": lambda path: _claims(path, b"trun", 4, 1, 170_000_000),
    "sparse 1 TB.mkv": _sparse,
    "sparse 1 TB.avi": _sparse,
    "sparse 1 TB.ts": _sparse,
    "sparse 1 TB.mp4": _sparse,
    "frames of 196 megapixels.mkv": _large,
    "20,001 streams.mp4": _streams,
}


def _video(folder: Path, name: str, make: Callable[[Path], None]) -> str:
    path = folder / f"a{Path(name).suffix}"
    make(path)
    errors = 0
    reads: tuple[Callable[[Path], object], ...] = (
        read_video,
        frame_times,
        video_frames,
        lambda path: decode(f"{path}#t=0.04"),
        lambda path: decode(f"{path}#t=999999"),
    )
    for read in reads:
        try:
            read(path)
        except SarelocError:
            errors += 1
    return "right" if errors else "silently wrong"


def _place(second: int) -> tuple[float, float]:
    return 48.85 + second * 1e-4, 2.29


NOON = 1_714_564_800  # 2024-05-01
NO_ENTRIES = klv(b"TSMP", b"L", 0, 0, b"")
TELEMETRY: dict[str, tuple[bytes, Callable[[], bytes]]] = {
    "repeat times size beyond the payload": (
        b"gpmd",
        lambda: device(SCALES + b"GPS5l\xff\xff\xff"),
    ),
    "a container beyond the payload": (b"gpmd", lambda: b"DEVC\0\xff\xff\xff" + gps5([_place(1)])),
    "4,000 levels": (b"gpmd", lambda: b"".join(b"DEVC\0\x04" + struct.pack(">H", 8190 - 2 * n) for n in range(4_000))),
    "2 million empty entries": (b"gpmd", lambda: device(NO_ENTRIES * 8_000) * 250),
    "a TYPE of 65,000 repetitions": (
        b"gpmd",
        lambda: device(
            klv(b"TYPE", b"c", 1, 65_000, b"l[255]" * 10_833 + b"ll") + SCALES + klv(b"GPS9", b"?", 32, 1, bytes(32))
        ),
    ),
    "2,300 GPS5 entries": (b"gpmd", lambda: device(SCALES + klv(b"GPS5", b"l", 20, 1, bytes(20)) * 2_300)),
    "no scale": (b"gpmd", lambda: gps5([_place(1)], scales=b"")),
    "scales of zero": (b"gpmd", lambda: gps5([_place(1)], scales=klv(b"SCAL", b"f", 4, 1, bytes(4)))),
    "no fix": (b"gpmd", lambda: gps5([_place(1)], fix=0)),
    "a clock of 2015": (b"gpmd", lambda: gps5([_place(1)], 1_420_070_400)),
    "a jump": (b"gpmd", lambda: gps5([(-48.0, 100.0)] * 3)),
    "16 MB of zeros": (b"gpmd", lambda: bytes(16_000_000)),
    "30 MB": (b"gpmd", lambda: gps5([_place(1)]) + bytes(30_000_000)),
    "CAMM of an unknown type": (b"camm", lambda: struct.pack("<2H", 0, 77) + bytes(60)),
    "CAMM that is cut off": (b"camm", lambda: camm5(*_place(1))[:-9]),
    "500,000 CAMM packets of motion": (b"camm", lambda: (struct.pack("<2H", 0, 2) + bytes(12)) * 500_000),
}


def _telemetry(folder: Path, form: bytes, payload: Callable[[], bytes]) -> str:
    """Of four payloads one is hostile: the positions of the three others are read, and no wrong one."""
    video = write_video(folder / "a.mp4", [0, 1000, 2000, 3000], codec="mpeg4")
    seconds = (0, 1, 2, 3)
    usual = {t: gps5([_place(t)], NOON + t) if form == b"gpmd" else camm5(*_place(t)) for t in seconds}
    add_track(video, [(t, payload() if t == 1 else usual[t]) for t in seconds], form)
    found = read_telemetry(video).track
    away_m = [min(float(distance_m(latlon, _place(t))) for t in seconds) for latlon in found.latlon]
    return "right" if len(found) in (3, 4) and max(away_m) < 1 else "silently wrong"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _socket(path: Path) -> None:
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": _pipe,
    "device": _device,
    "socket": _socket,
    "folder": Path.mkdir,
    "NUL": lambda _: None,
}
USES: dict[str, Callable[[Path], object]] = {
    "photo.jpg": decode,
    "view.jpg": lambda path: decode(f"{path}#yaw=0&pitch=0&fov=60&size=64x48"),
    "frame.mp4": lambda path: decode(f"{path}#t=1"),
    "digest.jpg": content_digest,
    "table.csv": read_geotag_table,
    "table.json": read_geotag_table,
    "track.gpx": read_track,
    "track.nmea": read_track,
}
SIDECARS = ("a.jpg.json", "a.jpg.supplemental-metadata.json", "a.jpg.xmp", "a.xmp")


def _sidecars(folder: Path, name: str) -> str:
    """A photo whose sidecars are no regular files has neither a position nor a time."""
    photo = write_photo(folder / "a.jpg", 1, tagged=False)
    for sidecar in SIDECARS:
        SPECIAL[name](folder / sidecar)
    return "right" if read_geotag(photo) is None and read_time(photo) is None else "silently wrong"


def _special(folder: Path, name: str, use: str) -> str:
    path = folder / (f"x\0{use}" if name == "NUL" else use)
    SPECIAL[name](path)
    USES[use](path)  # raises an error of ours
    return "silently wrong"


def _map_row(folder: Path, name: str) -> str:
    """A map one of whose photos is no regular file gets the local features of the others."""
    model = tiny_model()
    write_town(folder / "town", 2)
    build_map(model, folder / "town", folder / "town.gpkg", progress=False)
    bad = "town/x\0.jpg" if name == "NUL" else "town/bad.jpg"
    if name != "NUL":
        SPECIAL[name](folder / bad)
    for row in (bad, f"{bad}#yaw=0&pitch=0&fov=60&size=64x48"):
        with closing(gis(folder / "town.gpkg")) as connection:
            connection.execute("UPDATE photos SET file = ? WHERE fid = 1", (row,))
            connection.commit()
        report = add_local_features(folder / "town.gpkg", keypoints=8, device="cpu", progress=False)
        # a row whose name cannot be a file is left out when the map is read, and `map verify` names it
        named = verify_map(folder / "town.gpkg") if name == "NUL" else report.unreadable
        if len(named) != 1:
            return "silently wrong"
    return "right"
