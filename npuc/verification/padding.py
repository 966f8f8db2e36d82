"""Models whose automatic padding onnxruntime computes differently from ONNX, with the padding made explicit.

onnxruntime ignores dilations when it pads a pool, and gives a ConvTranspose whose kernel is smaller than its
stride fewer rows and columns than stride times extent. Source: ONNX, attribute auto_pad of these operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import helper

from npuc.errors import NpucError
from npuc.frontend import load
from npuc.frontend.dynamic import without_dynamic_quantisation
from npuc.frontend.importing import without_functions
from npuc.frontend.reading import read_model
from npuc.ir import Graph
from npuc.wire import may_contain

WRITTEN_OUT = {"ConvTranspose": ("pads", "output_padding"), "MaxPool": ("pads",), "AveragePool": ("pads",)}


def model_of(path: Path, shapes: Mapping[str, tuple[int, ...]], *, whole: bool = True) -> onnx.ModelProto:
    """The parsed file, prepared for onnxruntime. shapes: of its inputs. Raises ModelError (E101, E102).

    Model-local functions are replaced by their bodies, whose tensors a program may show. whole: as `read_model`.
    """
    model = without_dynamic_quantisation(without_functions(read_model(path, whole=whole)))
    automatic = [node for node in model.graph.node if node.op_type in WRITTEN_OUT and _is_automatic(node)]
    if automatic:
        try:
            graph = load(path, dict(shapes))
        except NpucError:  # part of the model runs on the host: keep onnxruntime's own padding
            return model
        for node in automatic:
            _write_out(node, graph)
    return model


def has_automatic_padding(path: Path) -> bool:
    """Whether a file may contain automatic padding instead of explicit pads."""
    return may_contain(path, b"SAME_")


def _is_automatic(node: onnx.NodeProto) -> bool:
    return any(each.name == "auto_pad" and each.s.startswith(b"SAME_") for each in node.attribute)


def _write_out(node: onnx.NodeProto, graph: Graph) -> None:
    read = graph.producers.get(node.output[0])
    if read is None or read.op != node.op_type:
        return
    kept = [
        each for each in node.attribute if each.name not in ("auto_pad", "output_shape", *WRITTEN_OUT[read.op])
    ]
    written = [
        helper.make_attribute(key, list(read.integers(key))) for key in WRITTEN_OUT[read.op] if key in read.attrs
    ]
    del node.attribute[:]
    node.attribute.extend([*kept, *written])
