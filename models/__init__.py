"""Networks for compiling, testing and measuring: one builder per file, and a small trained network.

`MODELS` lists them all; a builder's module, and onnx with it, is imported when the builder is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def _builder(name: str) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        return import_module(f"npuc.models.{name}").build()

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

MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = MappingProxyType({name: _builder(name) for name in _NAMES})
"""Name -> builder of every network of this package."""
