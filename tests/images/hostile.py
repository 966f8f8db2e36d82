"""Damaged and hostile picture files, the same for a seed: what a folder of photos from anywhere may hold."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Random = np.random.Generator
FORMATS = {"png": "PNG", "jpg": "JPEG", "bmp": "BMP", "webp": "WEBP", "ppm": "PPM"}
SUFFIXES = (*FORMATS,)
MAGIC = (
    b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"BM", b"RIFF\xff\xff\xff\xffWEBPVP8 ", b"P6 ", b"GIF89a", b"II*\0",
    b"<svg>", b"PK\3\4",
)  # fmt: skip
MODES = {
    "jpg": ("L", "CMYK", "YCbCr"), "png": ("1", "L", "LA", "P", "RGBA"), "bmp": ("1", "L", "P"), "webp": ("RGBA",),
    "ppm": ("1", "L"),
}  # fmt: skip


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, colour: int, pixels: bytes, *more: bytes) -> bytes:
    """A PNG file with this header and these bytes as compressed pixels. more: chunks in between."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return MAGIC[0] + head + b"".join(more) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@cache
def zeros(size: int) -> bytes:
    """So many zeros, compressed."""
    packer, block = zlib.compressobj(9), bytes(1 << 16)
    whole = [packer.compress(block) for _ in range(size >> 16)]
    return b"".join([*whole, packer.compress(block[: size % (1 << 16)]), packer.flush()])


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    """The bytes of a file."""
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def picture(random: Random, mode: str = "RGB") -> Image.Image:
    """Some pixels."""
    size = tuple(int(each) for each in random.integers(1, 40, 2))
    image = Image.fromarray(random.integers(0, 256, (*size[::-1], 3)).astype(np.uint8))
    return image.convert(mode)


def whole(random: Random, suffix: str) -> bytes:
    """A sound file."""
    return encoded(picture(random), FORMATS[suffix])


def truncated(random: Random, suffix: str) -> bytes:
    data = whole(random, suffix)
    return data[: int(random.integers(len(data)))]


def flipped(random: Random, suffix: str) -> bytes:
    data = bytearray(whole(random, suffix))
    for place in random.integers(0, len(data), int(random.integers(1, 20))):
        data[place] ^= 1 << int(random.integers(8))
    return bytes(data)


def noise(random: Random, _suffix: str) -> bytes:
    start = MAGIC[int(random.integers(len(MAGIC)))] * int(random.integers(2))
    return start + random.bytes(int(random.integers(900)))


def other_form(random: Random, suffix: str) -> bytes:
    others = [each for each in (*FORMATS.values(), "GIF", "TIFF", "ICO") if each != FORMATS[suffix]]
    return encoded(picture(random), others[int(random.integers(len(others)))])


def huge(random: Random, suffix: str) -> bytes:
    """A header of more pixels than there are, or than memory holds."""
    width, height = (int(2 ** random.uniform(12, 31)) for _ in range(2))
    match suffix:
        case "png":
            return png(width, height, 8, 2, zeros(99))
        case "jpg":
            frame = b"\xff\xc0\0\x11\x08" + struct.pack(">HH", height & 0xFFFF, width & 0xFFFF)
            scan = b"\xff\xda\0\x0c\3\1\0\2\0\3\0\0\x3f\0" + random.bytes(99)
            return b"\xff\xd8" + frame + b"\3\1\x11\0\2\x11\0\3\x11\0" + scan
        case "bmp":
            head = struct.pack("<IiiHH", 40, width & 0x7FFFFFFF, -height, 1, 24)
            return b"BM" + struct.pack("<III", 99, 0, 54) + head + bytes(24)
        case "webp":
            extended = b"VP8X\x0a\0\0\0\0\0\0\0" + b"\xff" * 6
            return b"RIFF\x20\0\0\0WEBP" + extended + b"VP8L\4\0\0\0\x2f\xff\xff\xff"
        case _:
            return f"P6 {width} {height} 255\n".encode() + bytes(99)


def bomb(random: Random, _suffix: str) -> bytes:
    """Little that decompresses to much: pixels, pixels behind the last, text, a profile."""
    much = b"a\0\0" + zeros(1 << 27)
    return (
        png(20_000, 6_000, 8, 0, zeros(20_001 * 6_000)),
        png(1, 1, 8, 0, zeros(1 << 27)),
        png(1, 1, 8, 0, zeros(2), chunk(b"zTXt", much)),
        png(1, 1, 8, 0, zeros(2), chunk(b"iCCP", much)),
    )[int(random.integers(4))]


def deep(random: Random, suffix: str) -> bytes:
    """More than 8 bits a channel."""
    if suffix == "ppm":
        return b"P6 2 1 65535\n" + random.bytes(12)
    colour, channels = ((0, 1), (2, 3), (4, 2), (6, 4))[int(random.integers(4))]
    return png(2, 1, 16, colour, zlib.compress(b"\0" + random.bytes(4 * channels)))


def modes(random: Random, suffix: str) -> bytes:
    """Grey, black and white, a palette, CMYK, alpha."""
    return encoded(picture(random, MODES[suffix][int(random.integers(len(MODES[suffix])))]), FORMATS[suffix])


def animated(random: Random, suffix: str) -> bytes:
    """Several pictures in a file: the first counts."""
    images = [picture(random).resize((9, 7)) for _ in range(3)]
    return encoded(images[0], FORMATS[suffix], save_all=True, append_images=images[1:])


def upright(random: Random, _suffix: str) -> bytes:
    """An orientation of EXIF, or what is none."""
    exif = Image.Exif()
    exif[0x0112] = int(random.integers(12))
    exif[0x010E] = "x" * int(random.integers(60_000))
    return encoded(picture(random), "JPEG", exif=exif)


def strange_exif(random: Random, _suffix: str) -> bytes:
    """Bytes in place of EXIF: pictures without an orientation, or refused."""
    order = (b"MM\0*", b"II*\0", b"")[int(random.integers(3))]
    return encoded(picture(random), "JPEG", exif=b"Exif\0\0" + order + random.bytes(99))


def profile(random: Random, suffix: str) -> bytes:
    """Bytes in place of an ICC profile, which is not applied."""
    return encoded(picture(random), FORMATS[suffix], icc_profile=random.bytes(int(random.integers(1, 70_000))))


KINDS: dict[str, Callable[[Random, str], bytes]] = {
    "plain": whole, "truncated": truncated, "flipped": flipped, "noise": noise, "other_form": other_form,
    "huge": huge, "bomb": bomb, "deep": deep, "modes": modes, "animated": animated, "upright": upright,
    "strange_exif": strange_exif, "profile": profile, "empty": lambda _random, _suffix: b"",
}  # fmt: skip
FORMS_OF = {
    "bomb": ("png",), "upright": ("jpg",), "strange_exif": ("jpg",), "deep": ("png", "ppm"),
    "animated": ("png", "webp"), "profile": ("png", "jpg", "webp"),
}  # fmt: skip
NAMES = (b"caf\xe9", "日本".encode(), b"a\nb", b"\x1b[31mred", b"a b'c\"d", b"x" * 240, b"-o", b"%s{}", b"[a]*?")


def write(folder: Path, seed: int) -> tuple[str, Path]:
    """Writes a file into a folder: its kind, and its path."""
    random = np.random.default_rng(seed)
    kinds = [*KINDS, "names", "links", "pipe"]
    kind, suffix = kinds[seed % len(kinds)], SUFFIXES[seed // len(kinds) % len(SUFFIXES)]
    forms = FORMS_OF.get(kind, (suffix,))
    path = folder / f"{seed:03}.{suffix if suffix in forms else forms[0]}"
    suffix = path.suffix[1:]
    if kind == "names":
        name = NAMES[int(random.integers(len(NAMES)))]
        path = folder / os.fsdecode(name + f".{suffix}".encode())
        path.write_bytes(whole(random, suffix))
    elif kind == "links":
        targets = (path.name, "nothing.png", ".", "/dev/zero", "/dev/null", "/proc/self/mem")
        path.symlink_to(targets[int(random.integers(len(targets)))])
    elif kind == "pipe":
        os.mkfifo(path) if seed % 2 else path.mkdir()
    else:
        path.write_bytes(KINDS[kind](random, suffix))
    return kind, path
