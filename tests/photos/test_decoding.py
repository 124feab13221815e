from __future__ import annotations

import contextlib
import io
import os
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import sareloc.photos.decoding as decoding
import sareloc.photos.photo_file as photo_file
from sareloc.errors import ArgumentError, PhotoError
from sareloc.photos import Resizing, decode, is_truncated
from sareloc.photos.decoding import DecodingMemory
from sareloc.photos.photo_file import pillow_errors

pytest.importorskip("pillow_heif").register_heif_opener()  # so that Pillow can save HEIC; decode does without

HEIGHT, WIDTH = 48, 80
FORMATS = ["JPEG", "PNG", "WEBP", "AVIF", "TIFF", "HEIC"]
LOSSLESS = {"PNG", "TIFF"}
ORIENTATION = 0x0112


def scene(height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Smooth, and different in each corner: no turn or flip of it looks like another."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    return np.stack([40 + 200 * x, 30 + 180 * y, 220 - 150 * x * y], axis=2).round().astype(np.uint8)


def encoded(image: np.ndarray | Image.Image, format: str, **options: object) -> bytes:
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    stream = io.BytesIO()
    quality = {} if format in LOSSLESS else {"quality": 95}
    picture.save(stream, "HEIF" if format == "HEIC" else format, **(quality | options))
    return stream.getvalue()


def orientation_exif(value: object) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = value
    return exif.tobytes()


def assert_close(found: np.ndarray, expected: np.ndarray, format: str = "") -> None:
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    difference = np.abs(found.astype(int) - expected)
    assert difference.mean() <= (0 if format in LOSSLESS else 3), f"mean difference {difference.mean()}"


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_decodes(format: str, tmp_path: Path) -> None:
    content = encoded(scene(), format)
    path = tmp_path / "photo.dat"  # the content says what it is, not the name
    path.write_bytes(content)
    for source in (path, str(path), content, io.BytesIO(content)):
        assert_close(decode(source), scene(), format)
    with path.open("rb") as stream:
        stream.read(7)
        assert_close(decode(stream), scene(), format)
        assert not stream.closed  # it is the caller's


def test_a_stream_that_cannot_seek(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as stream:
        stream.write(encoded(scene(), "PNG"))
    with os.fdopen(reading, "rb") as stream:
        assert_close(decode(stream), scene(), "PNG")


# EXIF 2.3: "the 0th row is at the visual <first> of the image, and the 0th column is the visual <second>".
STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda up: up,  # top, left
    2: lambda up: up[:, ::-1],  # top, right
    3: lambda up: up[::-1, ::-1],  # bottom, right
    4: lambda up: up[::-1],  # bottom, left
    5: lambda up: up.swapaxes(0, 1),  # left, top
    6: lambda up: up[:, ::-1].swapaxes(0, 1),  # right, top
    7: lambda up: up[::-1, ::-1].swapaxes(0, 1),  # right, bottom
    8: lambda up: up[::-1].swapaxes(0, 1),  # left, bottom
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("orientation", STORED)
def test_images_come_upright(format: str, orientation: int) -> None:
    stored = np.ascontiguousarray(STORED[orientation](scene()))
    content = encoded(stored, format, exif=orientation_exif(orientation))
    assert_close(decode(content), scene(), format)
    sides = []

    def half(height: int, width: int) -> tuple[int, int]:
        sides.append((height, width))
        return height // 2, width // 2

    assert_close(decode(content, size=half), scene(HEIGHT // 2, WIDTH // 2))
    assert sides == [(HEIGHT, WIDTH)]  # the rule sees the upright photo


@pytest.mark.parametrize(
    "entry",
    [
        (3, 1, b"\0\0"),
        (3, 1, b"\x09\0"),
        (3, 1, b"\xff\xff"),
        (2, 4, b"six\0"),
        (5, 1, b"\xff" * 4),
    ],
)
def test_a_meaningless_orientation_is_passed_over(entry: tuple[int, int, bytes]) -> None:
    exif = b"Exif\0\0II*\0" + struct.pack("<IHHHI4sI", 8, 1, ORIENTATION, *entry, 0)
    assert_close(decode(encoded(scene(), "JPEG", exif=exif)), scene())


def test_damaged_exif_does_not_harm_good_pixels() -> None:
    exif = bytearray(orientation_exif(6))
    exif[10:] = b"\xff" * len(exif[10:])
    assert_close(decode(encoded(scene(), "JPEG", exif=bytes(exif))), scene())


# What is not 8-bit RGB


def grey() -> np.ndarray:
    return scene()[:, :, 0]


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled_not_clipped(format: str) -> None:
    content = encoded(Image.fromarray(grey().astype(np.uint16) * 257), format)
    assert_close(decode(content), np.repeat(grey()[:, :, None], 3, axis=2), "PNG")


def png(colour_type: int, bits: int, rows: np.ndarray, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG by hand, for what Pillow does not write. `rows` (H, bytes in a row)."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, colour_type, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", pixels), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def test_16_bit_colour_is_scaled() -> None:
    wide = (scene().astype(">u2") * 257).astype(">u2")
    assert_close(decode(png(2, 16, wide)), scene(), "PNG")


def big_endian_tiff_16() -> bytes:
    stream = io.BytesIO()
    Image.frombytes("I;16B", (WIDTH, HEIGHT), (grey().astype(">u2") * 257).astype(">u2").tobytes()).save(stream, "TIFF")
    return stream.getvalue()


def test_16_bit_big_endian() -> None:
    assert_close(decode(big_endian_tiff_16()), np.repeat(grey()[:, :, None], 3, axis=2), "TIFF")


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_32_bit_pixels_are_refused_with_the_reason(dtype: type) -> None:
    with pytest.raises(PhotoError, match=r"depth\.tif: 32-bit"):
        decode(encoded(Image.fromarray(grey().astype(dtype)), "TIFF"), name="depth.tif")


@pytest.mark.parametrize("mode", ["L", "1", "CMYK", "YCbCr", "P"])
def test_colour_modes(mode: str) -> None:
    picture = Image.fromarray(scene()).convert(mode)
    format = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    expected = np.asarray(picture.convert("RGB"))
    assert_close(decode(encoded(picture, format)), expected, format)


def test_1_bit_is_black_and_white() -> None:
    image = decode(encoded(Image.fromarray(grey() > 128), "PNG"))
    np.testing.assert_array_equal(image, np.where(grey() > 128, 255, 0)[:, :, None].repeat(3, axis=2))


def over_white(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha[:, :, None] / 255
    return (colour * share + 255 * (1 - share)).round()


@pytest.mark.parametrize("format", ["PNG", "TIFF", "WEBP", "AVIF"])
def test_transparent_pixels_show_white(format: str) -> None:
    alpha = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    alpha[:, WIDTH // 2 :], alpha[:, : WIDTH // 4] = 255, 128
    content = encoded(np.dstack([scene(), alpha]), format)
    found = decode(content)
    difference = np.abs(found - over_white(scene(), alpha))
    assert difference.max() <= 1 if format in LOSSLESS else difference.mean() < 4


def test_grey_with_transparency_shows_white() -> None:
    alpha = scene()[:, :, 1]
    content = encoded(Image.merge("LA", [Image.fromarray(grey()), Image.fromarray(alpha)]), "PNG")
    assert np.abs(decode(content) - over_white(scene()[:, :, [0, 0, 0]], alpha)).max() <= 1


@pytest.mark.parametrize("transparency", [0, bytes([0, 255])])
def test_palette_with_transparency_shows_white(transparency: object) -> None:
    indexed = Image.frombytes("P", (WIDTH, HEIGHT), (grey() > 128).astype(np.uint8).tobytes())
    indexed.putpalette([200, 0, 0, 0, 0, 200])
    image = decode(encoded(indexed, "PNG", transparency=transparency))
    np.testing.assert_array_equal(image[grey() > 128], np.broadcast_to([0, 0, 200], image[grey() > 128].shape))
    assert (image[grey() <= 128] == 255).all()


def test_a_transparent_colour_shows_white() -> None:
    rows = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    rows[:, 10:] = (10, 20, 30)
    image = decode(png(2, 8, rows, (b"tRNS", struct.pack(">HHH", 10, 20, 30))))
    assert (image[:, 10:] == 255).all()
    assert (image[:, :10] == 0).all()


@pytest.mark.parametrize("format", ["PNG", "WEBP", "AVIF", "TIFF"])
def test_of_an_animation_the_first_frame_counts(format: str) -> None:
    others = [Image.new("RGB", (WIDTH, HEIGHT), colour) for colour in ("red", "blue")]
    assert_close(decode(encoded(scene(), format, save_all=True, append_images=others)), scene(), format)


def test_a_multi_picture_jpeg_gives_the_first() -> None:
    other = Image.new("RGB", (WIDTH, HEIGHT), "red")
    assert_close(decode(encoded(scene(), "MPO", save_all=True, append_images=[other])), scene())


def test_images_are_the_callers_own() -> None:
    image = decode(encoded(scene(), "JPEG"))
    assert image.flags.writeable
    assert image.flags.c_contiguous


# Sizes


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
@pytest.mark.parametrize("target", [(480, 640), (37, 61), (700, 1100), (9, 800)])
def test_resized_to_what_the_rule_says(format: str, target: tuple[int, int]) -> None:
    content = encoded(scene(600, 1000), format)
    assert_close(decode(content, size=lambda height, width: target), scene(*target))


def test_resizing_is_antialiased() -> None:
    lines = np.zeros((512, 512, 3), dtype=np.uint8)
    lines[:, ::2] = 255  # taking every 8th pixel would give all white
    for format in ("PNG", "JPEG"):
        image = decode(encoded(lines, format), size=lambda height, width: (64, 64))
        assert np.abs(image[:, 2:-2].astype(int) - 127).max() <= 3


def test_draft_mode_changes_little_and_keeps_the_geometry() -> None:
    rng = np.random.default_rng(0)
    rough = Image.fromarray(rng.integers(0, 256, (75, 101, 3), dtype=np.uint8)).resize(
        (1213, 901), Image.Resampling.BICUBIC
    )
    content = encoded(rough, "JPEG")
    full = np.asarray(Image.open(io.BytesIO(content)).resize((151, 113), Image.Resampling.BILINEAR)).astype(int)
    quick = decode(content, size=lambda height, width: (113, 151))
    assert np.abs(quick - full).mean() < 1.5
    assert np.abs((quick - full).mean(axis=(0, 1))).max() < 0.2  # no shift of brightness
    shifted = np.abs(np.roll(full, 1, axis=1) - full).mean()
    assert np.abs(quick - full).mean() < shifted / 10  # less than a tenth of a pixel's shift


def test_a_small_reduction_is_pillows_own_bilinear() -> None:
    content = encoded(scene(100, 150), "JPEG")
    expected = Image.open(io.BytesIO(content)).resize((90, 60), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(decode(content, size=lambda height, width: (60, 90)), np.asarray(expected))


def test_a_bicubic_rule_is_pillows_own_bicubic() -> None:
    content = encoded(scene(100, 150), "PNG")
    full = Image.open(io.BytesIO(content))
    bicubic = decode(content, size=Resizing(lambda height, width: (60, 90), "bicubic"))
    np.testing.assert_array_equal(bicubic, np.asarray(full.resize((90, 60), Image.Resampling.BICUBIC)))
    assert (bicubic != np.asarray(full.resize((90, 60), Image.Resampling.BILINEAR))).any()


def test_a_photo_that_the_size_rule_refuses() -> None:
    def refuse(height: int, width: int) -> tuple[int, int]:
        raise ArgumentError(f"{height} x {width} is too small")

    with pytest.raises(PhotoError, match=r"icon\.png: 48 x 80 is too small"):
        decode(encoded(scene(), "PNG"), size=refuse, name="icon.png")


def test_a_broken_size_rule_is_not_the_photos_fault() -> None:
    content = encoded(scene(), "JPEG")
    with pytest.raises(ZeroDivisionError):
        decode(content, size=lambda height, width: (height // 0, 1))
    for wrong in ((0, 5), (5.5, 5), (5, -1), (5,)):
        with pytest.raises(ArgumentError, match="two positive integers"):
            decode(content, size=lambda height, width, wrong=wrong: wrong)


# What cannot be decoded


@pytest.mark.parametrize("format", FORMATS)
def test_a_truncated_photo_names_itself(format: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    content = encoded(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8), format)
    path = tmp_path / f"cut.{format.lower()}"
    for share in (0.1, 0.5, 0.7):
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(PhotoError) as caught:
            decode(path)
        assert caught.value.photo == str(path)
        assert "0x" not in str(caught.value)  # no address of an object in memory


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", r"the file is empty \(0 bytes\)"),
        (b"\0", "not a JPEG, PNG, WebP, AVIF, TIFF, HEIC or RAW photo, or damaged"),
        (b"<html><body>404 Not Found</body></html>", "not a JPEG, PNG"),
        (b"GIF89a" + b"\0" * 50, "not a JPEG, PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a JPEG, PNG"),  # never handed to Ghostscript
        (b"\xff\xd8\xff", "not a JPEG, PNG"),
        (b"\0\0\0\x18ftypheic" + b"\0" * 40, "cannot be decoded"),
    ],
)
def test_what_is_not_a_photo(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(content)
    with pytest.raises(PhotoError, match=r"photo\.jpg: " + reason):
        decode(tmp_path / "photo.jpg")
    with pytest.raises(PhotoError, match=f"photo without a name: {reason}"):
        decode(content)


def test_paths_that_lead_to_no_file(tmp_path: Path) -> None:
    with pytest.raises(PhotoError, match=r"none\.jpg: no such file"):
        decode(tmp_path / "none.jpg")
    with pytest.raises(PhotoError, match="is a folder, not a photo"):
        decode(tmp_path)
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(PhotoError, match="is not a regular file"):
        decode(tmp_path / "pipe.jpg")
    with pytest.raises(PhotoError, match="NUL character"):
        decode("a\0b.jpg")
    with pytest.raises(PhotoError, match="too long"):
        decode("a" * 5000)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission_denied(tmp_path: Path) -> None:
    path = tmp_path / "private.jpg"
    path.write_bytes(encoded(scene(), "JPEG"))
    path.chmod(0)
    with pytest.raises(PhotoError, match="permission denied"):
        decode(path)


def test_permission_denied_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, for those who run the tests as root: the system's refusal is all that is made up."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "private.jpg").write_bytes(encoded(scene(), "JPEG"))
    monkeypatch.setattr(photo_file, "open_regular", refuse)
    with pytest.raises(PhotoError, match=r"private\.jpg: permission denied: it cannot be read by this user"):
        decode(tmp_path / "private.jpg")


def bomb() -> bytes:
    """A PNG of 40,000 x 40,000 black pixels: 4.8 GB from a header and a few bytes."""
    content = bytearray(png(2, 8, scene()))
    content[16:24] = struct.pack(">II", 40_000, 40_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


def test_a_decompression_bomb_is_refused_from_its_header() -> None:
    message = r"40000 x 40000 px is more than the limit of 200 megapixels"
    with pytest.raises(PhotoError, match=message):
        decode(bomb())
    with pytest.raises(PhotoError, match=r"80 x 48 px is more than the limit of 0\.001 megapixels"):
        decode(encoded(scene(), "JPEG"), max_pixels=1000)


def test_photos_above_pillows_own_limit_decode_up_to_ours() -> None:
    """180 megapixels: Pillow alone warns at 89 and refuses at 179; the largest phone sensors have 200."""
    stream = io.BytesIO()
    Image.new("L", (18_000, 10_000), 77).save(stream, "JPEG")
    image = decode(stream, size=lambda height, width: (height // 100, width // 100))
    assert image.shape == (100, 180, 3)
    assert (image == 77).all()
    assert Image.MAX_IMAGE_PIXELS == 1024 * 1024 * 1024 // 4 // 3  # left as it was


def test_heic_without_its_extra_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    content = encoded(scene(), "HEIC")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # what Python itself does for an import that must fail
    with pytest.raises(PhotoError, match=r'IMG_1\.HEIC: .*pip install "sareloc\[heic\]"'):
        decode(content, name="IMG_1.HEIC")


def test_pillow_stays_quiet_until_the_last_one_is_out() -> None:
    with pillow_errors("first"):
        with pillow_errors("second"):
            pass
        warnings.warn("still not heard", stacklevel=1)
        assert Image.MAX_IMAGE_PIXELS is None
    with pytest.warns(UserWarning, match="heard again"):
        warnings.warn("heard again", stacklevel=1)
    assert Image.MAX_IMAGE_PIXELS is not None


def test_threads_side_by_side_leave_the_process_as_it_was() -> None:
    contents = [encoded(scene(), format) for format in FORMATS] * 4
    filters, limit = list(warnings.filters), Image.MAX_IMAGE_PIXELS
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for content in contents:
                assert decode(content).shape == (HEIGHT, WIDTH, 3)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert warnings.filters == filters
    assert limit == Image.MAX_IMAGE_PIXELS


# Fuzzing: no mutation of a real file may raise anything but PhotoError, or warn (warnings are errors here).

SMALL = {format: encoded(scene(24, 40), format, exif=orientation_exif(6)) for format in FORMATS}
SMALL["MPO"] = encoded(scene(24, 40), "MPO", save_all=True, append_images=[Image.new("RGB", (40, 24))])
SMALL["APNG"] = encoded(scene(24, 40), "PNG", save_all=True, append_images=[Image.new("RGB", (40, 24))])
SMALL["PALETTE"] = encoded(Image.fromarray(scene(24, 40)).convert("P"), "PNG", transparency=bytes([0, 100]))
SMALL["LZW"] = encoded(scene(24, 40), "TIFF", compression="tiff_lzw")
SMALL["GREY16"] = encoded(Image.fromarray(grey().astype(np.uint16)), "TIFF")


@pytest.mark.parametrize("format", sorted(SMALL))
def test_an_opened_image_is_read_as_its_file_is(format: str) -> None:
    with Image.open(io.BytesIO(SMALL[format])) as image:
        np.testing.assert_array_equal(decode(image), decode(SMALL[format]))


@st.composite
def mutations(draw: st.DrawFn) -> tuple[str, bytes]:
    format = draw(st.sampled_from(sorted(SMALL)))
    content = bytearray(SMALL[format])
    # Headers decide most: half of the changes go to the first 300 bytes.
    where = st.one_of(st.integers(0, 300), st.integers(0, len(content) - 1))
    for _ in range(draw(st.integers(0, 6))):
        at = min(draw(where), len(content) - 1)
        content[at : at + draw(st.integers(0, 4))] = draw(st.binary(min_size=0, max_size=8))
    if draw(st.integers(0, 3)) == 0:
        del content[draw(st.integers(0, max(len(content) - 1, 0))) :]
    return format, bytes(content)


def survives(content: bytes) -> None:
    for size in (None, lambda height, width: (16, 16)):
        with contextlib.suppress(PhotoError):
            image = decode(content, size=size, max_pixels=4_000_000)
            assert image.dtype == np.uint8
            assert image.ndim == 3
            assert image.shape[2] == 3


@settings(max_examples=200, deadline=None)
@given(mutations())
def test_mutated_photos_decode_or_name_themselves(mutated: tuple[str, bytes]) -> None:
    survives(mutated[1])


@pytest.mark.slow
@settings(max_examples=20_000, deadline=None)
@given(mutations())
def test_many_mutated_photos_decode_or_name_themselves(mutated: tuple[str, bytes]) -> None:
    survives(mutated[1])


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        [b"", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"RIFF", b"II*\0", b"MM\0*", b"\0\0\0\x1cftypavif"]
    ),
    st.binary(max_size=200),
)
def test_noise_behind_a_signature(signature: bytes, noise: bytes) -> None:
    survives(signature + noise)


# A JPEG without its last bytes, as a broken copy or a full card leaves it


def noise(mode: str = "RGB") -> Image.Image:
    """As much detail everywhere, so that a share of the bytes is the same share of the rows."""
    pixels = np.random.default_rng(3).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((400, 300), Image.Resampling.BICUBIC).convert(mode)


@pytest.mark.parametrize(
    ("mode", "options"),
    [("RGB", {}), ("RGB", {"progressive": True}), ("L", {}), ("CMYK", {}), ("RGB", {"restart_marker_rows": 1})],
    ids=["baseline", "progressive", "grey", "CMYK", "restart markers"],
)
def test_a_jpeg_that_is_almost_complete_is_used(mode: str, options: dict[str, object], tmp_path: Path) -> None:
    content = encoded(noise(mode), "JPEG", **options)
    path = tmp_path / "cut.jpg"
    path.write_bytes(content[: int(len(content) * 0.97)])
    assert is_truncated(path)
    for size in (None, lambda height, width: (height // 3, width // 3)):
        expected = decode(content, size=size).astype(int)
        for source in (path, path.read_bytes()):
            found = decode(source, size=size)
            assert found.shape == expected.shape
            rows = int(len(expected) * 0.9)
            assert np.abs(found[:rows] - expected[:rows]).mean() < 2
    for share in (0.5, 0.3):
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(PhotoError, match=r"cut\.jpg.*truncated"):
            decode(path)


def test_a_turned_photo_that_is_almost_complete_comes_upright() -> None:
    content = encoded(noise(), "JPEG", exif=orientation_exif(6))
    found = decode(content[: int(len(content) * 0.97)])
    assert found.shape == (400, 300, 3)
    assert np.abs(found[:, 40:].astype(int) - decode(content)[:, 40:]).mean() < 2  # the lower edge is now on the left


def test_only_a_jpeg_without_its_end_is_called_truncated(tmp_path: Path) -> None:
    path = tmp_path / "photo"
    content = encoded(noise(), "JPEG")
    for other in (b"", b"no photo", content, content + b"a trailer of the camera's", encoded(noise(), "PNG")):
        path.write_bytes(other)
        assert not is_truncated(path)
    block = b"Exif\0\0" + encoded(scene(), "JPEG")  # with an end of its own
    path.write_bytes(encoded(noise(), "JPEG", exif=block)[:-9])
    assert is_truncated(path)
    assert not is_truncated(tmp_path / "none")


# memory


MEASURE = """
import re, sys, threading, zlib
from struct import pack
from sareloc.errors import PhotoError
from sareloc.photos import decode

def chunk(kind, content):
    return pack(">I", len(content)) + kind + content + pack(">I", zlib.crc32(kind + content))

side, at_once, cut = map(int, sys.argv[1:])
packer = zlib.compressobj(1)
row = b"\\0" + bytes((200, 100, 50, 128)) * side
rows = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
header = pack(">IIBBBBB", side, side, 8, 6, 0, 0, 0)
cut = cut or len(rows) + 1000
photo = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
found = []
# not ru_maxrss, which a child process inherits from its parent
peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) / 1000
before = peak()

def work():
    try:
        found.append(decode(photo[:cut], size=lambda height, width: (96, 96)))
    except PhotoError as error:
        found.append(error)  # kept, as the service keeps it until it answers

threads = [threading.Thread(target=work) for _ in range(at_once)]
[t.start() for t in threads]
[t.join() for t in threads]
assert len(found) == at_once
assert all(isinstance(f, PhotoError) if cut < 0 else (f == (227, 177, 152)).all() for f in found), found
print(peak() - before)
"""


def decoding_mb(side: int, at_once: int, cut: int = 0) -> float:
    """By how many MB the memory of a process grows that decodes so many RGBA PNGs of side x side px at once.

    cut: where the files end, such as -100: before their last 100 bytes; 0: complete.
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc to read the memory from")
    command = [sys.executable, "-c", MEASURE, str(side), str(at_once), str(cut)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout)


def test_a_transparent_photo_is_decoded_with_one_copy_of_its_pixels() -> None:
    assert decoding_mb(side=3000, at_once=1) < 2 * 4 * 9 + 30


@pytest.mark.slow
def test_six_large_transparent_photos_at_once_stay_below_a_gigabyte() -> None:
    assert decoding_mb(side=8000, at_once=6) < 1000
    assert decoding_mb(side=8000, at_once=6, cut=-1000) < 1000


def test_many_threads_that_need_all_the_memory_take_turns_and_all_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MEMORY", DecodingMemory(1))
    inside, most, found = 0, 0, []
    lock = threading.Lock()

    def size(height: int, width: int) -> tuple[int, int]:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        for _ in range(1000):  # so that others get a chance to enter
            pass
        with lock:
            inside -= 1
        return 8, 8

    photo, broken = encoded(scene(), "PNG"), encoded(scene(), "PNG")[:400]

    def work(content: bytes) -> None:
        with contextlib.suppress(PhotoError):
            found.append(decode(content, size=size))

    threads = [threading.Thread(target=work, args=(photo if i % 3 else broken,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len(found) == 8


def segment(content: bytes) -> bytes:
    return b"\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content


@pytest.mark.timeout(60)  # Pillow needs squared time: minutes
@pytest.mark.parametrize(
    "before",
    [
        segment(b"Exif\0\0" + bytes(6_000)) * 10_000,
        segment(b"http://ns.adobe.com/xap/1.0/\0" + bytes(100)) * 10_001,
        b"\xff\xe1\0\x02" + b"\0" * 30_000_000,
        b"\xff" * 200_000,
    ],
    ids=["EXIF", "XMP", "between", "fill"],
)
def test_absurd_metadata_of_a_jpeg_is_an_error_at_once(before: bytes) -> None:
    jpeg = encoded(scene(), "JPEG")
    with pytest.raises(PhotoError, match="precede its pixels"):
        decode(jpeg[:2] + before + jpeg[2:])


def test_some_more_metadata_of_a_jpeg_is_read() -> None:
    jpeg = encoded(scene(), "JPEG")
    more = (
        segment(b"Exif\0\0" + bytes(60_000)) * 3
        + segment(b"http://ns.adobe.com/xmp/extension/\0" + bytes(60_000)) * 300
    )
    np.testing.assert_array_equal(decode(jpeg[:2] + more + b"\xff\xff\xff" + jpeg[2:]), decode(jpeg))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "head", [b"\xff\xd8\xff\xe0", b"RIFF\xff\xff\xff\0WEBPVP8 ", b"\x89PNG\r\n\x1a\n", b"II*\0\x08\0\0\0"]
)
def test_a_sparse_photo_is_an_error_at_once(head: bytes, tmp_path: Path) -> None:
    with (tmp_path / "a.jpg").open("wb") as file:
        file.write(head)
        file.truncate(10**12)
    with pytest.raises(PhotoError, match="is a sparse file"):
        decode(tmp_path / "a.jpg")
    assert not is_truncated(tmp_path / "a.jpg")
