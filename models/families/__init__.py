"""Seven families of networks in the styles of three exporters: the same layers in each exporter's nodes and names.

`STYLES` and `FAMILIES` list them; `build` makes one. Modules, and onnx with them, are imported when one is built.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

STYLES = {"tensorflow": "TensorFlow", "dynamo": "Dynamo", "paddle": "Paddle"}
"""Module of this package -> its exporter."""
FAMILIES = (
    "mobilenet_v3_small",
    "ocr_recogniser",
    "vision_transformer",
    "transformer_encoder",
    "recurrent",
    "audio",
    "dfl_detector",
)
"""The networks, in the order of the documentation's table."""


def build(family: str, style: str, seed: int = 0) -> onnx.ModelProto:
    """A network of a family in the style of an exporter, with random weights."""
    networks = import_module("npuc.models.families.networks").NETWORKS
    exporter = getattr(import_module(f"npuc.models.families.{style}"), STYLES[style])
    return networks[family](exporter(family, seed))
