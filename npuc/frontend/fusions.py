"""What onnxruntime's optimiser fused with an activation, as two nodes: a target may run the first alone."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import helper

from npuc.onnx_files.subgraphs import tensor_names
from npuc.text.escaping import Names

KINDS = {
    "activation": onnx.AttributeProto.STRING,
    "activation_params": onnx.AttributeProto.FLOATS,
    **dict.fromkeys(("activation_alpha", "activation_beta"), onnx.AttributeProto.FLOAT),
}
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign"), ()),
    **dict.fromkeys(("LeakyRelu", "Elu"), ("alpha",)),
    "HardSigmoid": ("alpha", "beta"),
}
"""Activations that are nodes of the same form in every opset, and their parameters in order."""


def with_activations_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an ONNX node for the activation of every FusedConv and FusedGemm; itself if none has one.

    A Clip stays fused. Source: onnxruntime, docs/ContribOperators.md.
    """
    if not any(map(_is_fused, model.graph.node)):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    names = Names(tensor_names(made.graph))
    nodes = [new for node in model.graph.node for new in _apart(node, names)]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _is_fused(node: onnx.NodeProto) -> bool:
    given = {each.name: each for each in node.attribute}
    if node.domain != "com.microsoft" or node.op_type not in ("FusedConv", "FusedGemm") or len(node.output) != 1:
        return False
    if any(KINDS.get(name, each.type) != each.type for name, each in given.items()):
        return False  # the importer tells what is wrong
    return "activation" in given and given["activation"].s.decode(errors="replace") in ACTIVATIONS


def _apart(node: onnx.NodeProto, names: Names) -> Iterator[onnx.NodeProto]:
    if not _is_fused(node):
        yield node
        return
    first, given = onnx.NodeProto(), {each.name: helper.get_attribute_value(each) for each in node.attribute}
    first.CopyFrom(node)
    del first.attribute[:]
    first.attribute.extend(each for each in node.attribute if not each.name.startswith("activation"))
    first.output[0] = names.new(f"{node.output[0]}/before")
    if node.op_type == "FusedGemm":
        first.op_type, first.domain = "Gemm", ""
    op = given["activation"].decode()
    own = [given.get(f"activation_{key}", 0.0) for key in ("alpha", "beta")]
    values = given.get("activation_params", ()) if node.op_type == "FusedConv" else own
    attrs = dict(zip(ACTIVATIONS[op], values, strict=False))
    yield from (first, helper.make_node(op, first.output, node.output, **attrs))
