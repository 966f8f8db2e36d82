"""The description of an image input: how a picture becomes what the model's first node reads.

    # input.toml                            for several inputs: one table each, [NAME]
    preset = "imagenet"                     # what follows overrides it
    order = "rgb"                           # channels that the model expects
    mean = [123.675, 116.28, 103.53]        # in units of the pixels, 0 to 255
    std = [58.395, 57.12, 57.375]           # or scale, its reciprocal
    resize = 256                            # pixels of the short side; crop = 224 takes the middle
    frame = "bgr"                           # channels that the camera gives [order]; "float": no frame
    bits = 12                               # of a frame's pixel [8]: 4095 of it are 255.9 of 255
    layout = "nhwc"                         # of the frame
    labels = "names.txt"                    # names of the classes, or a list of them

A value is (pixel - mean) / std in float32. A pixel of more than 8 bits counts with its fraction: 12 bits / 16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from npuc.errors import DataError
from npuc.flag import FLOAT
from npuc.frozen import frozen
from npuc.images import yuv
from npuc.ir import Array, TensorType
from npuc.storage.files import decode, toml
from npuc.system.budget import read_file
from npuc.text.terminal import closest, page

CHANNELS: Mapping[str, str] = {order: order for order in ("rgb", "bgr", "rgba", "bgra")} | {"gray": "y"}
"""The channels of each order, a letter each."""
FRAMES: Mapping[str, str] = {**CHANNELS, yuv.FULL: yuv.FULL}
"""The same, of frames with a value of each channel for each pixel."""
LAYOUTS = ("nhwc", "nchw")
INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos")
PIXEL = 255
DEPTHS = (8, 10, 12, 16)
"""Bits of a frame's pixel, in a byte or in the low bits of 16."""
MOST = 1 << 14
"""The most pixels of a side to resize to."""
REMEDY = f"{page('photos.md')} describes the keys"


@frozen
class Description:
    """What an image input expects. Fields without a default here are 0, empty or None where nothing is asked."""

    input: str = ""
    """The input's name; empty: the only one."""
    order: str = "rgb"
    """Channels that the model expects, one of CHANNELS."""
    frame: str = ""
    """Channels of the frame; empty: those of `order`. FLOAT: no frame, the program takes what the model reads."""
    layout: str = "nhwc"
    """Axes of the frame, one of LAYOUTS."""
    bits: int = 8
    """Of the frame's pixels, one of DEPTHS."""
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    """In units of the pixels: one value, or one for each channel of `order`."""
    resize: int = 0
    """Pixels of the short side, before the middle is taken; 0: see crop_ratio."""
    crop: int = 0
    """Pixels of both sides of the middle; 0: as the model has them."""
    crop_ratio: float = 0.0
    """The short side is so much larger than the input (0.875: 256 for 224). Without any: width and height change
    independently."""
    letterbox: int | None = None
    """The value around a picture that is made to fit whole."""
    interpolation: str = "bilinear"
    labels: tuple[str, ...] = ()
    """Names of the classes."""
    shape: tuple[int, ...] = ()
    """The model's shape; empty until `bound_to`."""
    fused: bool = False
    """Whether the program takes frames in place of what the model reads."""

    @property
    def given(self) -> str:
        """The order of the frame's channels."""
        return self.order if self.frame in ("", FLOAT) else self.frame

    @property
    def axis(self) -> int:
        """The axis of the channels in the model's shape."""
        channels = len(CHANNELS[self.order])
        return 1 if self.shape[1] == channels else 3

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the input."""
        return (self.shape[2], self.shape[3]) if self.axis == 1 else (self.shape[1], self.shape[2])

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """The shape of the frames of one sample."""
        if self.given in yuv.YUV:
            return (self.shape[0], *yuv.frame_shape(self.given, self.size))
        batch, channels = self.shape[0], len(FRAMES[self.given])
        return (batch, *self.size, channels) if self.layout == "nhwc" else (batch, channels, *self.size)

    @property
    def frame_type(self) -> TensorType:
        """The type of the frames of one sample."""
        return TensorType(self.frame_shape, "uint8" if self.bits == DEPTHS[0] else "uint16")

    @property
    def unit(self) -> int:
        """The frame's value for one of 255 parts of white."""
        return 1 << (self.bits - DEPTHS[0])

    @property
    def places(self) -> list[int]:
        """For each channel that the model expects, its place among the frame's; of YUV frames, among R, G, B."""
        given = CHANNELS.get(self.given, "rgb")
        return [given.index(each) for each in CHANNELS[self.order]]

    def normalise(self, pixels: Array) -> Array:
        """The float32 values (.., C, H, W) or (.., H, W, C) of pixels (.., H, W, C) in the model's order."""
        mean, std = (np.asarray(each, np.float32) for each in (self.mean, self.std))
        values = (pixels.astype(np.float32) - mean) / std
        return np.ascontiguousarray(np.moveaxis(values, -1, -3) if self.axis == 1 else values)

    def values_of(self, frames: Array) -> Array:
        """What the model reads for the frames (.., H, W, C) or (.., C, H, W) of a sample, or YUV."""
        if self.given in yuv.YUV:
            return self.normalise(yuv.to_rgb(frames, self.given)[..., self.places])
        pixels = frames if self.layout == "nhwc" else np.moveaxis(frames, -3, -1)
        if self.given == yuv.FULL:
            pixels = yuv.to_rgb(pixels, yuv.FULL)
        return self.normalise(pixels[..., self.places] / np.float32(self.unit))

    def bound_to(self, types: Mapping[str, TensorType]) -> Description:
        """The description of one of these inputs of a model. Raises DataError (E405) if it does not fit."""
        name = self.input or (next(iter(types)) if len(types) == 1 else "")
        if name not in types:
            reason = f"the model has no input '{name}'" if name else f"the model has {len(types)} inputs"
            raise _bad_key(reason, None, f"inputs: {', '.join(types)}", "name it: a table [NAME] in the file")
        found, kind = replace(self, input=name, shape=tuple(types[name].shape)), types[name]
        channels = len(CHANNELS[self.order])
        if len(found.shape) != 4 or min(found.shape) < 1 or channels not in (found.shape[1], found.shape[3]):
            limit = f"[N, {channels}, H, W] or [N, H, W, {channels}] for order = {self.order!r}"
            raise _bad_key(f"the input's shape is {[*found.shape]}", name, limit)
        plain = set(self.mean) == {0.0} and set(self.std) == {1.0} and self.given == self.order
        plain = plain and self.bits == DEPTHS[0]
        if kind.dtype != "float32" and not (kind.dtype == "uint8" and plain):
            limit = "float32; uint8 without mean and std, in its own order"
            raise _bad_key(f"the input's type is {kind.dtype}", name, limit)
        if kind.dtype == "uint8":
            layout = "nchw" if found.axis == 1 else "nhwc"
            found = replace(found, fused=False, layout=layout)
        found._expect_fitting(name)
        return found

    def _expect_fitting(self, name: str) -> None:
        """Raises DataError (E405) if what is cut from pictures has not the input's size."""
        height, width = self.size
        if self.crop and self.size != (self.crop, self.crop):
            raise _bad_key(f"crop = {self.crop}", name, f"the input has {height} x {width} pixels")
        if self.given in yuv.YUV and not yuv.has_even_chroma(self.given, self.size):
            raise _bad_key(f"frame = {self.frame!r}", name, f"even sides; the input has {height} x {width} pixels")
        if self.resize and min(self.resize - height, self.resize - width) < 0:
            raise _bad_key(f"resize = {self.resize}", name, f"at least the input's {height} x {width} pixels")

    @property
    def short_side(self) -> int:
        """Pixels of the short side before the middle is taken; 0 if none is taken."""
        return self.resize or (math.floor(max(self.size) / self.crop_ratio) if self.crop_ratio else 0)

    def unsound(self, shape: tuple[int, ...]) -> str | None:
        """Why this is no description that npuc wrote; None if it may be. shape: of the program's input."""
        usual = Description()
        own = {
            name: each for name, each in self.as_json().items() if name in KEYS and each != usual.as_json()[name]
        }
        try:
            _one(own, self.input, Path())
        except DataError as error:
            return error.problems[0].reason
        channels = len(CHANNELS[self.order])
        if len(self.shape) != 4 or min(self.shape) < 1 or channels not in (self.shape[1], self.shape[3]):
            return f"its shape is {[*self.shape]}"
        if shape != (self.frame_shape if self.fused else self.shape):
            return f"the program's input is {[*shape]}"
        return None

    def as_json(self) -> dict[str, Any]:
        """The entry of the manifest."""
        return {name: [*each] if isinstance(each, tuple) else each for name, each in asdict(self).items()}


PRESETS: Mapping[str, Description] = {
    "none": Description(),
    "imagenet": Description(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375), crop_ratio=0.875),
    "tf": Description(mean=(127.5,), std=(127.5,), crop_ratio=0.875),
    "caffe-bgr": Description(order="bgr", mean=(103.939, 116.779, 123.68), crop_ratio=0.875),
    "yolo": Description(std=(255.0,), letterbox=114),
    "mtcnn": Description(mean=(127.5,), std=(128.0,)),
}
"""Customary descriptions: torchvision, TensorFlow's MobileNets, Caffe, Ultralytics' YOLO, MTCNN."""
COMPUTED = ("input", "shape", "fused")
"""Fields that no file gives."""
KEYS = ("preset", "scale", *(each.name for each in fields(Description) if each.name not in COMPUTED))  # pyright: ignore


def describe(source: str | PathLike[str] | Mapping[str, Any]) -> tuple[Description, ...]:
    """The descriptions in a TOML file or a mapping of the same keys, or the preset of this name.

    Raises DataError: E401 for a file that cannot be read, E405 for an unknown key or an invalid value.
    """
    if isinstance(source, Mapping):
        return _several(source, Path())
    if isinstance(source, str) and source in PRESETS:
        return (PRESETS[source],)
    path = Path(source)
    if not path.suffix and not path.exists():
        reason = f"there is no preset '{path}' and no such file.{closest(str(path), PRESETS)}"
        raise _bad_key(reason, None, f"{', '.join(PRESETS)}, or a .toml file")
    try:
        values = toml(read_file(path, "E401", "give the description of an input, a TOML file"))
    except (ValueError, RecursionError) as error:
        raise _bad_key(f"'{path}' cannot be read: {error}", None, "a TOML file of name = value lines") from None
    return _several(values, path.parent)


def _several(values: Mapping[str, Any], folder: Path) -> tuple[Description, ...]:
    """The description of the only input, or of each table's."""
    tables = {name: each for name, each in values.items() if isinstance(each, Mapping)}
    own = {name: each for name, each in values.items() if name not in tables}
    if tables and own:
        limit = "keys of the only input, or a table for each input"
        raise _bad_key(f"'{next(iter(own))}' stands beside the table of an input", None, limit)
    return tuple(_one(each, name, folder) for name, each in tables.items()) or (_one(own, "", folder),)


def _one(values: Mapping[str, Any], name: str, folder: Path) -> Description:
    for key in values:
        if key not in KEYS:
            raise _bad_key(f"unknown key '{key}'.{closest(key, KEYS)}", name, ", ".join(KEYS))
    preset = values.get("preset", "none")
    if preset not in PRESETS:
        raise _bad_key(f"preset = {preset!r}.{closest(str(preset), PRESETS)}", name, ", ".join(PRESETS))
    if "scale" in values and "std" in values:
        raise _bad_key("std and scale are both given", name, "one of them: scale = 1 / std")
    read = {key: _read(key, each, name, folder) for key, each in values.items() if key != "preset"}
    if "scale" in read:
        read["std"] = tuple(1 / each for each in read.pop("scale"))
    base = PRESETS[preset]
    if "letterbox" in read or "resize" in read:  # another way to fit than the preset's
        base = replace(base, crop_ratio=0.0, letterbox=None)
    return _check(replace(base, **read, input=name))


def _read(key: str, value: Any, name: str, folder: Path) -> Any:
    """The value of a key as the field holds it. Raises DataError (E405) for an invalid one."""
    choices: Mapping[str, Any] = {
        "order": CHANNELS,
        "frame": (*FRAMES, *yuv.YUV, FLOAT),
        "layout": LAYOUTS,
        "bits": DEPTHS,
        "interpolation": INTERPOLATIONS,
    }
    if key in choices:
        if value in yuv.ALL and key == "order":
            remedy = f'frame = "{value}", and the order that the model expects'
            raise _bad_key(f"order = {value!r} is what a camera gives", name, ", ".join(CHANNELS), remedy)
        known = tuple(choices[key])
        if type(value) is not type(known[0]) or value not in known:
            near = closest(str(value), known) if isinstance(value, str) and isinstance(known[0], str) else ""
            raise _bad_key(f"{key} = {value!r}.{near}", name, ", ".join(map(str, known)))
        return value
    if key in ("mean", "std", "scale"):
        several = value if isinstance(value, list | tuple) else [value]
        if not several or not all(_is_number(each) for each in several):
            raise _bad_key(f"{key} = {value!r}", name, "a finite number, or one for each channel")
        if key != "mean" and not all(2.0**-60 < each < 2.0**60 for each in several):
            raise _bad_key(f"{key} = {value!r}", name, "above 0")
        return tuple(float(each) for each in several)
    if key == "labels":
        return _labels(value, name, folder)
    if key == "crop_ratio":
        if not _is_number(value) or not 1 / 16 <= value <= 1:
            raise _bad_key(f"{key} = {value!r}", name, "0.0625..1")
        return float(value)
    least, most = (0, PIXEL) if key == "letterbox" else (1, MOST)
    if type(value) is not int or not least <= value <= most:
        raise _bad_key(f"{key} = {value!r}", name, f"an integer, {least}..{most}")
    return value


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and abs(value) < 2.0**60  # pyright: ignore


def _labels(value: object, name: str, folder: Path) -> tuple[str, ...]:
    if isinstance(value, str):
        return labels_of(folder / value)
    if not isinstance(value, list | tuple) or not value or not all(isinstance(each, str) for each in value):
        raise _bad_key("labels are no names", name, "a text file of a name a line, or a list of names")
    return tuple(value)


def labels_of(path: Path) -> tuple[str, ...]:
    """The names of classes in a file, one a line. Raises DataError (E401, E405)."""
    remedy = "give a text file with the name of a class in each line"
    try:
        lines = decode(read_file(path, "E401", remedy)).split("\n")
    except ValueError as error:
        raise _bad_key(f"the labels '{path}': {error}", None, "UTF-8 text", remedy) from None
    names = tuple(each.strip() for each in lines)
    while names and not names[-1]:
        names = names[:-1]
    if not names:
        raise _bad_key(f"the labels '{path}' are empty", None, "a name a line", remedy)
    return names


def _check(found: Description) -> Description:
    """The description, if its keys fit each other. Raises DataError (E405)."""
    channels, name = len(CHANNELS[found.order]), found.input
    for key, values in (("mean", found.mean), ("std", found.std)):
        if len(values) not in (1, channels):
            limit = f"one value, or {channels} for order = {found.order!r}"
            raise _bad_key(f"{key} has {len(values)} values", name, limit)
    if found.given in yuv.YUV and found.layout != "nhwc":
        raise _bad_key(f"layout = {found.layout!r} beside frame = {found.frame!r}", name, "no layout")
    if found.given in yuv.ALL and found.bits != DEPTHS[0]:
        raise _bad_key(f"bits = {found.bits} beside frame = {found.frame!r}", name, "8 bits")
    if not {*CHANNELS[found.order]} <= {*CHANNELS.get(found.given, "rgb")}:
        limit = "a frame with all channels of the order"
        raise _bad_key(f"frame = {found.frame!r} lacks channels of order = {found.order!r}", name, limit)
    if found.letterbox is not None and (found.resize or found.crop or found.crop_ratio):
        raise _bad_key("letterbox excludes resize and crop", name, "one of them")
    if found.crop and not (found.resize or found.crop_ratio):
        raise _bad_key(f"crop = {found.crop} without resize", name, "both: resize = 256, crop = 224")
    return found


def bind(
    images: Sequence[Description], types: Mapping[str, TensorType], *, fused: bool
) -> tuple[Description, ...]:
    """The descriptions of these inputs of a model. Raises DataError (E405) for one that does not fit.

    fused: whether programs take frames, unless a description says FLOAT.
    """
    return tuple(replace(each, fused=fused and each.frame != FLOAT).bound_to(types) for each in images)


def _bad_key(reason: str, name: str | None, limit: str | None = None, remedy: str = REMEDY) -> DataError:
    return DataError(
        "E405", f"the description of the input: {reason}", tensor=name or None, limit=limit, remedy=remedy
    )
