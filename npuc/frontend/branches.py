"""If with a constant condition: the chosen branch replaces the node in the graph."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.foreign import renamed as with_inputs
from npuc.onnx_files.external_data import array_of


def branch_of(node: OnnxNode, to: NodeBuilder) -> onnx.GraphProto:
    """The branch chosen by a constant condition; raises E202 for a condition computed at run time."""
    if node.inputs[0] not in to.constants:
        remedy = "export one branch, or bind the scalar input that chooses it (--bind INPUT=VALUE)"
        raise node.unsupported("the condition is computed at run time", remedy, limit="constant conditions")
    which = "then_branch" if to.value(node, 0).any() else "else_branch"
    if which not in node.attrs:
        raise node.bad(f"the attribute {which!r} is missing")
    branch: onnx.GraphProto = node.attrs[which]
    if len(branch.output) != len(node.outputs):
        raise node.bad(f"the branch has {len(branch.output)} outputs, the node {len(node.outputs)}")
    return branch


def inlined(node: OnnxNode, branch: onnx.GraphProto, to: NodeBuilder) -> Iterator[tuple[str, onnx.NodeProto]]:
    """The branch's nodes with their names. Its tensors get new names; its outputs get those of the If."""
    inside = [name for each in branch.node for name in each.output if name]
    renamed = {name: to.fresh(f"{node.name}/{name}") for name in (*inside, *(t.name for t in branch.initializer))}
    for tensor in branch.initializer:
        to.add_constant(renamed[tensor.name], array_of(tensor, to.folder))
    for at, each in enumerate(branch.node):
        copy = with_inputs(each, renamed)
        copy.output[:] = [renamed.get(name, name) for name in copy.output]
        yield to.node_name(f"{node.name}/{each.name or f'{each.op_type}_{at}'}"), copy
    for value, name in zip(branch.output, node.outputs, strict=True):
        source = renamed.get(value.name, value.name)
        yield to.node_name(f"{node.name}/{name}"), onnx.helper.make_node("Identity", [source], [name])
