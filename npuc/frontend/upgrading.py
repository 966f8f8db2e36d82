"""Upgrade of models with older opsets than npuc reads, by ONNX's own converter."""

from __future__ import annotations

import onnx
from onnx import version_converter

OLDEST_OPSET = 7
ONNX_DOMAINS = ("", "ai.onnx")
REFUSALS = (
    RuntimeError,
    ValueError,
    version_converter.ConvertError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
)
"""Exceptions of the converter and of the check of its result."""


def upgrade(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model converted to the oldest opset that npuc reads; unchanged if it is newer or cannot be converted.

    Models with operators of other domains are left unchanged: the converter does not know their meaning.
    """
    foreign = any(each.domain not in ONNX_DOMAINS for each in model.opset_import)
    if foreign or not is_old(model) or any(map(_is_aligned, model.graph.node)):
        return model
    named = onnx.ModelProto()
    named.CopyFrom(model)
    for at, node in enumerate(named.graph.node):  # the converter adds nodes: the model's own keep their numbers
        node.name = node.name or f"{node.op_type}_{at}"
    try:
        made = version_converter.convert_version(named, OLDEST_OPSET)
        onnx.checker.check_model(made, full_check=True)
    except REFUSALS:  # if the converter refuses, the model stays as it is
        return model
    return (
        made if all(_broadcast_slope(made, node) for node in made.graph.node if node.op_type == "PRelu") else model
    )


def is_old(model: onnx.ModelProto) -> bool:
    """Whether a model is older than npuc reads."""
    versions = {each.version for each in model.opset_import if each.domain in ONNX_DOMAINS}
    return len(versions) == 1 and max(versions) < OLDEST_OPSET


def _is_aligned(node: onnx.NodeProto) -> bool:
    """Whether an operand is broadcast from a given axis: the converter places it one dimension too far left."""
    given = {each.name for each in node.attribute}
    return {"broadcast", "axis"} <= given


def _broadcast_slope(model: onnx.ModelProto, node: onnx.NodeProto) -> bool:
    """Reshapes a slope per channel, (C,), to the broadcasting shape (C, 1, ...), which the converter does not do.

    Returns False if the slope, or the rank of the other factor, is unknown.
    """
    slope = next((each for each in model.graph.initializer if each.name == node.input[1]), None)
    if slope is None or sum(node.input[1] in each.input for each in model.graph.node) > 1:
        return False
    if list(slope.dims) == [1] or len(slope.dims) != 1:
        return True
    inferred = onnx.shape_inference.infer_shapes(model).graph
    known = {
        each.name: each.type.tensor_type for each in (*inferred.value_info, *inferred.input, *inferred.output)
    }
    found = known.get(node.input[0])
    if found is None or not found.HasField("shape"):
        return False
    extra = [1] * (len(found.shape.dim) - 2)
    slope.dims.extend(extra)
    for port in (each for each in model.graph.input if each.name == slope.name):
        for extent in extra:
            port.type.tensor_type.shape.dim.add(dim_value=extent)
    return True
