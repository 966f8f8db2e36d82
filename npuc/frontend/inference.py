"""Types of a node's results by ONNX's shape inference, within the limits on memory and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TypeProto, helper, numpy_helper, shape_inference

from npuc.errors import NpucError
from npuc.ir import Array
from npuc.onnx_files.subgraphs import subgraphs
from npuc.system.confinement import isolated

SMALL = 1 << 12
"""The most elements of a tensor whose values may determine a shape: sizes, repeats, limits.

ONNX's data propagation keeps a message for every element of a vector, known or not.
"""


def inferred(
    node: onnx.NodeProto,
    known: Mapping[str, TypeProto],
    constants: Mapping[str, Array],
    opsets: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, TypeProto]:
    """The types of a node's results by ONNX's rules; results without a type are left out.

    known: types of what the node reads, also in its subgraphs; constants: values of some of it. Raises ModelError
    (E110, E111) for a node whose subgraphs make ONNX need more memory or time than the limits.
    """
    inputs = [helper.make_value_info(name, each) for name, each in known.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    small = {name: each for name, each in constants.items() if each.size <= SMALL and each.dtype.kind in "fiub"}
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value, order="C"), name) for name, value in small.items()
    )
    model = helper.make_model(graph, opset_imports=opsets)
    long = any(_is_long(each) for each in known.values())
    return _confined(model) if any(subgraphs(node)) and not long else _types(model, data_prop=not long)


def _is_long(found: TypeProto) -> bool:
    """Whether this is a vector whose values ONNX must not follow."""
    dims = found.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > SMALL


def _types(model: onnx.ModelProto, *, data_prop: bool) -> dict[str, TypeProto]:
    try:
        found = shape_inference.infer_shapes(model, data_prop=data_prop)
    except Exception:  # no types are known if inference fails; onnxruntime decides later
        return {}
    return {each.name: each.type for each in found.graph.output if each.type.WhichOneof("value") is not None}


def _confined(model: onnx.ModelProto) -> dict[str, TypeProto]:
    """The types with data propagation, which in subgraphs meets vectors of any length: by another process."""
    plain = _types(model, data_prop=False)
    if len(plain) == len(model.graph.output) and all(map(is_static, plain.values())):
        return plain
    try:
        (found,) = isolated(_Propagation).run(None, {"model": model.SerializeToString()})
    except NpucError as error:
        if error.problems[0].code == "E105":
            return plain
        raise
    return {name: TypeProto.FromString(each) for name, each in found.items()}


def is_static(found: TypeProto) -> bool:
    """Whether every dimension is known."""
    tensor = found.tensor_type
    return tensor.HasField("shape") and all(each.HasField("dim_value") for each in tensor.shape.dim)


class _Propagation:
    """Shape inference with data propagation, run as an onnxruntime session is."""

    def get_inputs(self) -> Sequence[Any]:
        """None: the only feed is the model."""
        return ()

    get_outputs = get_inputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, bytes]) -> list[Any]:
        """The serialised types of the outputs by name."""
        del names
        model = onnx.ModelProto.FromString(feeds["model"])
        return [{name: each.SerializeToString() for name, each in _types(model, data_prop=True).items()}]
