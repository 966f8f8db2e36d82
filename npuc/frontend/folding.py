"""Values of constant nodes without a canonical operator, computed by ONNX's reference implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import onnx
from onnx import helper

from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.foreign import infer_types, is_static
from npuc.frontend.signatures import standard_form
from npuc.ir import Array
from npuc.system.budget import expect_room

RANDOM = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial")

NO_LARGER_THAN_INPUTS = ("NonZero", "Unique", "Compress", "NonMaxSuppression", "SplitToSequence", "SequenceAt")
"""Operators whose result sizes depend on values, but are bounded by a few times those of the inputs."""
ELEMENT_BYTES = 8
"""Bytes per element during computation: the reference implementation may use float64."""


def can_fold(node: OnnxNode, proto: onnx.NodeProto, to: NodeBuilder) -> bool:
    """Whether the value is the same everywhere: constant inputs, no subgraph, nothing random or undefined."""
    if node.op in RANDOM or any(each.type == onnx.AttributeProto.GRAPH for each in proto.attribute):
        return False
    constant = bool(node.inputs) and all(each in to.constants for each in node.inputs if each)
    return constant and not (node.op in ("Cast", "CastLike") and _is_undefined(node, to))


NARROW = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}
"""The ranges of the narrowest integers."""


def _is_undefined(node: OnnxNode, to: NodeBuilder) -> bool:
    """Whether a cast to a narrow integer meets a fraction or leaves the range.

    There onnxruntime rounds and saturates, where ONNX's reference implementation truncates and wraps around.
    """
    value = to.constants[node.inputs[0]]
    if node.op == "CastLike":
        dtype = to.types[node.inputs[1]].dtype
    else:
        dtype = str(np.dtype(helper.tensor_dtype_to_np_dtype(node.attrs["to"])))
    if dtype not in NARROW or value.dtype.kind not in "fiu":
        return False
    low, high = NARROW[dtype]
    return not bool(((value == np.rint(value)) & (value >= low) & (value <= high)).all())


def fold(node: OnnxNode, proto: onnx.NodeProto, to: NodeBuilder) -> None:
    """Makes the node's outputs constants. Raises E105 if the reference implementation refuses the node."""
    proto, opset = standard_form(proto, node.opset)
    node = replace(node, opset=opset)
    _expect_room(node, proto, to)
    values = _reference_values(node, proto, to)
    for name, value in zip(filter(None, proto.output), values, strict=True):
        to.add_constant(name, value)


def _expect_room(node: OnnxNode, proto: onnx.NodeProto, to: NodeBuilder) -> None:
    """Raises E110 for outputs that are too large, E105 for those whose size cannot be bounded in advance."""
    if node.op in NO_LARGER_THAN_INPUTS:
        return
    sizes = _sizes(node, proto, to)
    if sizes is None:
        raise node.bad("the size of the constant is not known before it is computed")
    for tensor, size in sizes.items():
        expect_room(size, "a constant", node=node.source, tensor=tensor)


def _sizes(node: OnnxNode, proto: onnx.NodeProto, to: NodeBuilder) -> dict[str, int] | None:
    """Bytes of every output by ONNX's shape inference; None if it cannot tell."""
    values = {raw: to.constants[each] for raw, each in zip(proto.input, node.inputs, strict=True) if raw}
    types = {
        name: helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    }
    found = infer_types(proto, types, values, [helper.make_opsetid(proto.domain, node.opset)])
    names = list(filter(None, proto.output))
    if not all(name in found and is_static(found[name]) for name in names):
        return None
    return {
        name: ELEMENT_BYTES * prod(dim.dim_value for dim in found[name].tensor_type.shape.dim) for name in names
    }


def _reference_values(node: OnnxNode, proto: onnx.NodeProto, to: NodeBuilder) -> Sequence[Array]:
    from onnx.reference import ReferenceEvaluator

    feeds = {raw: to.constants[each] for raw, each in zip(proto.input, node.inputs, strict=True) if raw}
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in feeds]
    outputs = [helper.make_empty_tensor_value_info(name) for name in proto.output if name]
    graph = helper.make_graph([proto], "constant", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", node.opset)])
    try:
        return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, feeds)]
    except Exception as error:
        # The reference implementation declares no exceptions of its own: any exception for this node
        # means that the node has no value.
        raise node.bad(f"the constant cannot be computed: {error}") from error
