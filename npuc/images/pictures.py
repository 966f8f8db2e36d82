"""Picture files as samples of a described input: decoded, fitted to its size, and normalised.

Sizes and cuts are torchvision's (Resize, CenterCrop); Pillow resamples, with antialiasing, as torchvision does for
PIL images. On tensors torchvision rounds otherwise: values differ by a step.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from errno import EINVAL
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npuc.errors import ArtefactError, DataError
from npuc.frozen import frozen
from npuc.images import yuv
from npuc.images.description import CHANNELS, Description
from npuc.ir import Array
from npuc.system.budget import REMEDY, limits

if TYPE_CHECKING:
    from PIL import Image

FORMATS = {
    ".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".bmp": "BMP", ".webp": "WEBP", ".ppm": "PPM", ".pgm": "PPM",
}  # fmt: skip
"""The format of a file by its suffix: others are not tried, so that no file is what its name does not say."""
COPIES = 4
"""Copies of a decoded picture, four bytes a pixel each, for which memory must suffice."""
MODES = {"gray": "L", "rgba": "RGBA", "bgra": "RGBA"}
"""Pillow's mode for an order of channels; RGB for others."""
EIGHT_BITS = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
"""Pillow's modes of at most 8 bits a channel."""


def is_picture(path: Path) -> bool:
    """Whether a file is a picture by its name."""
    return path.suffix.lower() in FORMATS


def pillow() -> Any:
    """Pillow's module Image. Raises ArtefactError (E507) if Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise ArtefactError("E507", "pictures need Pillow", remedy="pip install 'npuc[images]'") from None
    return Image


def open_picture(path: Path, order: str) -> Image.Image:
    """The picture of a file, upright as EXIF says, in Pillow's mode for an order of channels.

    Raises DataError: E401 for a file that cannot be read, is damaged or is not of the format that its name says,
    E402 for more than 8 bits a channel, E403 for one that memory does not suffice for.
    """
    pil = pillow()
    from PIL import ImageOps

    form = FORMATS[path.suffix.lower()]
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise OSError(EINVAL, "it is no file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of bombs, which are refused below, and of strange metadata
            with path.open("rb") as file, pil.open(file, formats=[form]) as image:
                _expect_small(path, image.size)
                image.load()
                deep = image.mode not in EIGHT_BITS
                found = image if deep else ImageOps.exif_transpose(image).convert(MODES.get(order, "RGB"))
    except DataError:
        raise
    except (pil.DecompressionBombError, MemoryError):
        raise _too_large(path, "more pixels than memory holds") from None
    except Exception as error:  # Pillow raises many unrelated types for damaged files
        said = getattr(error, "strerror", None) or (f"it is damaged, or no {form}: {type(error).__name__}")
        remedy = f"give a {form} file, or name it by what it holds: {', '.join(FORMATS)}"
        raise DataError("E401", f"'{path}' cannot be read: {said}", remedy=remedy) from None
    if deep:
        raise DataError("E402", f"'{path}' has pixels of the mode {found.mode}", limit="8 bits a channel")
    return found


def _expect_small(path: Path, size: tuple[int, int]) -> None:
    """Raises DataError (E403) unless memory holds the decoded picture."""
    if size[0] * size[1] * 4 * COPIES > limits().memory:
        raise _too_large(path, f"{size[0]} x {size[1]} pixels")


def _too_large(path: Path, what: str) -> DataError:
    return DataError("E403", f"'{path}' has {what}", limit=f"{limits().memory:,} bytes", remedy=REMEDY)


def fit(image: Image.Image, described: Description) -> Array:
    """The pixels (H, W, channels of the order) uint8 of a picture, made to fit the input's size."""
    height, width = described.size
    method = pillow().Resampling[described.interpolation.upper()]
    if described.letterbox is not None:
        image = _letterbox(image, (width, height), described.letterbox, method)
    elif described.short_side:
        image = _middle(_resize(image, described.short_side, method), (width, height))
    elif image.size != (width, height):
        image = image.resize((width, height), method)
    pixels = np.asarray(image).reshape(height, width, -1)
    letters = {"gray": "y"}.get(described.order, "rgba")
    return pixels[..., [letters.index(each) for each in CHANNELS[described.order]]]


def _resize(image: Image.Image, short: int, method: Any) -> Image.Image:
    """torchvision's Resize: the short side as given, the long one in proportion, rounded down."""
    width, height = image.size
    size = (short, int(short * height / width)) if width <= height else (int(short * width / height), short)
    return image if size == image.size else image.resize(size, method)


def _middle(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """torchvision's CenterCrop."""
    left, top = (round((whole - part) / 2.0) for whole, part in zip(image.size, size, strict=True))
    return image.crop((left, top, left + size[0], top + size[1]))


def _letterbox(image: Image.Image, size: tuple[int, int], value: int, method: Any) -> Image.Image:
    """The whole picture in the middle, as large as it fits; around it the value in each channel (alpha too)."""
    ratio = min(whole / part for whole, part in zip(size, image.size, strict=True))
    width, height = (min(max(round(part * ratio), 1), whole) for part, whole in zip(image.size, size, strict=True))
    inner = width, height
    canvas = pillow().new(image.mode, size, (value,) * len(image.getbands()))
    left, top = ((whole - part) // 2 for whole, part in zip(size, inner, strict=True))
    canvas.paste(image if inner == image.size else image.resize(inner, method), (left, top))
    return canvas


def frame_of(pixels: Array, described: Description) -> Array:
    """The frame that a camera would give for pixels (H, W, C): what it has beyond the order is opaque (255)."""
    if described.given in yuv.ALL:
        rgb = [CHANNELS[described.order].index(each) for each in "rgb"]
        frame = yuv.from_rgb(pixels[..., rgb], described.given)
        return frame if described.layout == "nhwc" else np.moveaxis(frame, -1, 0)
    given, order = CHANNELS[described.given], CHANNELS[described.order]
    opaque = np.full(pixels.shape[:2], 255, np.uint8)
    planes = [pixels[..., order.index(each)] if each in order else opaque for each in given]
    frame = np.stack(planes, axis=-1 if described.layout == "nhwc" else 0)
    return frame if described.unit == 1 else frame.astype(np.uint16) * np.uint16(described.unit)


@frozen
class Pictures:
    """The samples of picture files as rows, decoded as they are read; a batch takes several files."""

    files: Sequence[Path]
    described: Description
    dtype: str
    """float32: what the model reads; otherwise frames."""

    def __len__(self) -> int:
        return len(self.files) // self.batch

    @property
    def batch(self) -> int:
        """Files of a sample."""
        return self.described.shape[0]

    def blocks(self, size: int, start: int = 0) -> Iterator[Array]:
        """The samples from `start` on, at most `size` at a time. Raises DataError as `open_picture`."""
        for at in range(start, len(self), size):
            rows = range(at, min(at + size, len(self)))
            yield np.stack([self._sample(self.files[row * self.batch : (row + 1) * self.batch]) for row in rows])

    def _sample(self, files: Sequence[Path]) -> Array:
        return np.stack([self._picture(path) for path in files])

    def _picture(self, path: Path) -> Array:
        pixels = fit(open_picture(path, self.described.order), self.described)
        return self.described.normalise(pixels) if self.dtype == "float32" else frame_of(pixels, self.described)


def pictures(files: Sequence[Path], images: Sequence[Description], dtype: str, name: str) -> Pictures:
    """The samples of picture files for an input.

    Raises DataError: E401 if nothing describes the input, E402 if the files make no whole number of samples.
    """
    found = next((each for each in images if each.input == name), None)
    if found is None:
        reason = f"'{files[0]}' is a picture, and nothing describes how the input reads one"
        raise DataError(
            "E401", reason, tensor=name, remedy="compile with --input imagenet, or another description"
        )
    made = Pictures(files, found, dtype)
    if len(files) % made.batch:
        reason = f"{len(files)} pictures, from '{files[0]}' on, do not fill batches"
        remedy = f"give {len(files) // made.batch * made.batch or made.batch} of them, or compile for a batch of 1"
        raise DataError(
            "E402", reason, tensor=name, limit=f"{made.batch} a sample, as the model's batch", remedy=remedy
        )
    return made
