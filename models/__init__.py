"""Networks for compiling, testing and measuring.

A builder's module, and onnx with it, is imported when the builder is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def _builder(name: str, module: str) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        return getattr(import_module(f"npuc.models.{module}"), name)()

    build.__module__, build.__name__, build.__qualname__ = f"npuc.models.{module}", name, name
    return build


_MODULES = {
    "autoencoder": "networks",
    "bc_resnet": "networks",
    "detector": "detector",
    "digits": "digits",
    "ds_cnn": "networks",
    "lenet": "networks",
    "mobilenet_v1_025": "networks",
    "mobilenet_v2": "networks",
    "residual_awkward": "networks",
    "resnet8": "networks",
    "small_cnn": "networks",
    "unet_small": "networks",
}

MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = MappingProxyType(
    {name: _builder(name, module) for name, module in _MODULES.items()}
)
"""Name -> builder of a network."""

_PUBLIC = (
    *("shufflenet_detector", "nanodet", "yolov5", "yolov8", "ssd", "rfb", "blazeface"),
    *("unet", "deeplab", "mobilenet_v3", "tinyvit", "ppocr_recogniser"),
    *("gru_denoiser", "crnn", "keyword_spotting", "series_transformer"),
)

PUBLIC: Mapping[str, Callable[[], onnx.ModelProto]] = MappingProxyType(
    {name: _builder(name, "public") for name in _PUBLIC}
)
"""Name -> builder of a network of a family that users bring, as its exporter writes it."""
