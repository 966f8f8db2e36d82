"""Networks for compiling, testing and measuring.

`MODELS` has one builder per file, one of them trained, `PUBLIC` several per file. A builder's module, and onnx
with it, is imported when the builder is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def _builder(name: str, module: str, function: str = "build") -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        return getattr(import_module(f"npuc.models.{module}"), function)()

    build.__name__ = build.__qualname__ = name
    return build


_NAMES = (
    "autoencoder",
    "bc_resnet",
    "detector",
    "digits",
    "ds_cnn",
    "lenet",
    "mobilenet_v1_025",
    "mobilenet_v2",
    "residual_awkward",
    "resnet8",
    "small_cnn",
    "unet_small",
)

MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = MappingProxyType(
    {name: _builder(name, name) for name in _NAMES}
)
"""Name -> builder of a network."""

_PUBLIC = {
    "public_detectors": ("shufflenet_detector", "nanodet", "yolov5", "yolov8", "ssd", "rfb", "blazeface"),
    "public_maps": ("unet", "deeplab", "mobilenet_v3", "tinyvit", "ppocr_recogniser"),
    "public_sequences": ("gru_denoiser", "crnn", "keyword_spotting", "series_transformer"),
}

PUBLIC: Mapping[str, Callable[[], onnx.ModelProto]] = MappingProxyType(
    {name: _builder(name, module, name) for module, names in _PUBLIC.items() for name in names}
)
"""Name -> builder of a network of a family that users bring, as its exporter writes it."""
