"""Decoding and resizing against Pillow."""
import io
import struct

import numpy as np
import pytest
from conftest import RunnerError
from PIL import Image, ImageCms, ImageOps

WHITE = (255, 255, 255, 255)


def picture(width=75, height=50, seed=0):
    """Smooth colours with some noise, as photographs have."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 100 * np.sin(x / (5 + 3 * c) + seed) * np.cos(y / (9 - 2 * c)) for c in range(3)]
    return Image.fromarray((np.stack(waves, -1) + rng.normal(0, 4, (height, width, 3))).clip(0, 255).astype(np.uint8))


def with_alpha(image):
    alpha = Image.fromarray((np.arange(image.width * image.height) % 256).astype(np.uint8).reshape(image.height, -1))
    image = image.copy()
    image.putalpha(alpha)
    return image


def as_pillow_sees_it(path):
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image.convert("RGBA"))
    return np.asarray(image.convert("RGB")).astype(int)


def decode(run, *paths, **options):
    tensors = run("image-decode", *paths, options=options)
    return [tensors[str(i)].numpy().astype(int) for i in range(len(paths))]


def largest_difference(run, paths):
    """The largest difference in any channel of any picture, which must have the size that Pillow finds."""
    largest = 0
    for ours, path in zip(decode(run, *paths), paths, strict=True):
        theirs = as_pillow_sees_it(path)
        assert ours.shape == theirs.shape, path
        largest = max(largest, np.abs(ours - theirs).max())
    return largest


def save(image, path, **options):
    image.save(path, **options)
    return path


def test_png_of_every_kind(run, tmp_path):
    image = picture()
    palette = image.quantize(16)
    cases = {"rgb": image, "rgba": with_alpha(image), "grey": image.convert("L"), "bit": image.convert("1"),
             "grey_alpha": with_alpha(image.convert("L")), "palette": palette, "palette_4": image.quantize(4)}
    paths = [save(case, tmp_path / f"{name}.png") for name, case in cases.items()]
    paths.append(save(palette, tmp_path / "transparent_color.png", transparency=3))
    paths.append(save(image, tmp_path / "key.png", transparency=image.getpixel((0, 0))))
    assert largest_difference(run, paths) <= 1  # compositing rounds


def test_grey_of_sixteen_bits(run, tmp_path):
    """Against the arithmetic: Pillow cuts these off at 255."""
    values = np.arange(0, 65536, 37, dtype=np.uint16)[:1771].reshape(23, 77)
    ours, = decode(run, save(Image.fromarray(values), tmp_path / "grey16.png"))
    assert np.array_equal(ours, np.repeat(np.round(values / 257).astype(int)[:, :, None], 3, axis=2))


def test_jpeg_of_every_kind(run, tmp_path):
    image = picture()
    paths = [save(case, tmp_path / f"{i}.jpg", **options) for i, (case, options) in enumerate([
        (image, {"quality": 95}), (image, {"quality": 30}), (image, {"quality": 90, "subsampling": 0}),
        (image, {"quality": 90, "subsampling": 1}), (image, {"quality": 90, "progressive": True}),
        (image, {"quality": 90, "optimize": True}), (image, {"restart_marker_blocks": 3}), (image.convert("L"), {"quality": 90}),
        (picture(1, 1), {}), (picture(17, 3), {})])]
    assert largest_difference(run, paths) <= 1


@pytest.mark.parametrize("case", ["adobe", "unmarked"])
def test_four_component_jpeg(run, tmp_path, case):
    path = save(picture().convert("CMYK"), tmp_path / "cmyk.jpg", quality=95)
    data = path.read_bytes()
    at = data.index(b"\xff\xee\x00\x0eAdobe")
    if case == "unmarked":
        path.write_bytes(data[:at] + data[at + 16:])
    assert largest_difference(run, [path]) <= 1


def test_orientation_in_every_format(run, tmp_path):
    paths = []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for suffix, options in (("jpg", {"quality": 95}), ("png", {}), ("webp", {"lossless": True})):
            paths.append(save(picture(), tmp_path / f"{orientation}.{suffix}", exif=exif, **options))
    assert largest_difference(run, paths) <= 1
    assert decode(run, paths[15])[0].shape == (75, 50, 3)  # orientation 6


def test_webp(run, tmp_path):
    image = picture()
    paths = [save(image, tmp_path / "lossy.webp", quality=80),
             save(image, tmp_path / "lossless.webp", lossless=True),
             save(with_alpha(image), tmp_path / "alpha.webp", lossless=True, exact=True)]
    assert largest_difference(run, paths) <= 1


def matrix_profile(name, gamma, primaries):
    """A version 2 display profile, by the ICC specification: the columns of its matrix and one exponent."""
    def fixed(value):
        return struct.pack(">i", round(value * 65536))

    def xyz(values):
        return b"XYZ \0\0\0\0" + b"".join(map(fixed, values))

    curve = b"curv\0\0\0\0" + struct.pack(">IHH", 1, round(gamma * 256), 0)
    text = name.encode() + b"\0"
    desc = b"desc\0\0\0\0" + struct.pack(">I", len(text)) + text + bytes(78)
    tags = {b"desc": desc, b"cprt": b"text\0\0\0\0none\0", b"wtpt": xyz((0.9642, 1.0, 0.8249)),
            b"rXYZ": xyz(primaries[0]), b"gXYZ": xyz(primaries[1]), b"bXYZ": xyz(primaries[2]),
            b"rTRC": curve, b"gTRC": curve, b"bTRC": curve}
    offset, table, body = 128 + 4 + 12 * len(tags), b"", b""
    for tag, data in tags.items():
        table += tag + struct.pack(">II", offset + len(body), len(data))
        body += data + bytes(-len(data) % 4)
    header = (struct.pack(">I4sI4s4s4s", offset + len(body), b"lcms", 0x02400000, b"mntr", b"RGB ", b"XYZ ") +
              bytes(12) + b"acsp" + bytes(28) + b"".join(map(fixed, (0.9642, 1.0, 0.8249))))
    return header + bytes(128 - len(header)) + struct.pack(">I", len(tags)) + table + body


WIDE = [(0.6097, 0.3111, 0.0195), (0.2053, 0.6257, 0.0609), (0.1492, 0.0632, 0.7446)]  # Adobe RGB (1998)


def test_colour_profiles(run, tmp_path):
    image, profile = picture(), matrix_profile("wide", 2.2, WIDE)
    converted = ImageCms.profileToProfile(image, ImageCms.ImageCmsProfile(io.BytesIO(profile)),
                                          ImageCms.createProfile("sRGB"), renderingIntent=0)
    assert np.abs(np.asarray(converted).astype(int) - np.asarray(image)).max() > 20  # there is something to convert
    for name, options in {"a.png": {}, "a.webp": {"lossless": True}}.items():
        ours, = decode(run, save(image, tmp_path / name, icc_profile=profile, **options))
        assert np.abs(ours - np.asarray(converted)).max() <= 1, name
    jpeg = save(image, tmp_path / "a.jpg", icc_profile=profile, quality=100, subsampling=0)
    assert np.abs(decode(run, jpeg)[0] - np.asarray(converted)).mean() < 1.5
    # Profiles that are sRGB, broken, or of other colours than the file's change nothing.
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for i, other in enumerate([srgb, profile[:200], b"no profile"]):
        ours, = decode(run, save(image, tmp_path / f"other{i}.webp", icc_profile=other, lossless=True))
        assert np.array_equal(ours, np.asarray(image)), i


SOURCE_SIZES = [(75, 50), (400, 300), (1, 40), (31, 200), (82, 98)]  # Pillow takes the columns of some first


@pytest.mark.parametrize("size", [(32, 32), (64, 48), (75, 50), (200, 150), (7, 90), (1, 1)])
def test_crop_and_resize(run, tmp_path, size):
    sources = [picture(*source_size) for source_size in SOURCE_SIZES]
    paths = [save(source, tmp_path / f"{i}.png") for i, source in enumerate(sources)]
    width, height = size
    for source, ours in zip(sources, decode(run, *paths, width=width, height=height), strict=True):
        scale = min(source.width / width, source.height / height)
        left, top = (source.width - scale * width) / 2, (source.height - scale * height) / 2
        box = (left, top, min(left + scale * width, source.width), min(top + scale * height, source.height))
        theirs = np.asarray(source.resize(size, Image.Resampling.BICUBIC, box=box)).astype(int)
        assert np.array_equal(ours, theirs), (source.size, size)


@pytest.mark.parametrize("size", [(32, 32), (64, 48), (75, 50), (200, 150), (7, 90), (1, 1)])
def test_resize(run, tmp_path, size):
    sources = [picture(*source_size) for source_size in SOURCE_SIZES]
    paths = [save(source, tmp_path / f"{i}.png") for i, source in enumerate(sources)]
    width, height = size
    for source, ours in zip(sources, decode(run, *paths, width=width, height=height, whole=True), strict=True):
        theirs = np.asarray(source.resize(size, Image.Resampling.LANCZOS)).astype(int)
        assert np.array_equal(ours, theirs), (source.size, size)


def test_damaged_files_are_data_errors(run, tmp_path):
    for name, options in {"a.jpg": {}, "a.png": {}, "a.webp": {"lossless": True}}.items():
        data = save(picture(), tmp_path / name, **options).read_bytes()
        for size in (0, 3, 12, len(data) // 2, len(data) - 1):
            (tmp_path / name).write_bytes(data[:size])
            with pytest.raises(RunnerError) as error:
                decode(run, tmp_path / name)
            assert error.value.exit_code == 4 and name in error.value.message
