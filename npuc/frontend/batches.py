"""Recurrent operators with the batch first (layout 1) as ones with the steps first, which onnxruntime runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import helper

from npuc.onnx_files.subgraphs import graphs, tensor_names, within
from npuc.reference import STANDARD
from npuc.target import RECURRENT
from npuc.text.escaping import Names

SWAPPED = (1, 0, 2)
"""The axes of an input or a state in the other layout."""
INPUTS = (0, 5, 6)
"""The places of X and of the initial states."""
LAST = (2, 0, 1, 3)
"""The axes of all states, (batch, steps, directions, hidden), from (steps, directions, batch, hidden)."""


def steps_first(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every LSTM, GRU and RNN in layout 0, those in branches too; itself if none has layout 1.

    Source: ONNX, the attribute layout of these operators.
    """
    if not any(map(_batch_first, within(model.graph.node))):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    names = Names(tensor_names(made.graph))
    for graph in graphs(made.graph):
        nodes = [new for node in graph.node for new in _in_layout_0(node, names)]
        del graph.node[:]
        graph.node.extend(nodes)
    return made


def _batch_first(node: onnx.NodeProto) -> bool:
    layout = (each.i for each in node.attribute if each.name == "layout")
    return node.op_type in RECURRENT and node.domain in STANDARD and 1 in layout


def _in_layout_0(node: onnx.NodeProto, names: Names) -> Iterator[onnx.NodeProto]:
    """The node, between the transpositions of its inputs and outputs."""
    if not _batch_first(node):
        yield node
        return
    made, behind = onnx.NodeProto(), list[onnx.NodeProto]()
    made.CopyFrom(node)
    del made.attribute[:]
    made.attribute.extend(each for each in node.attribute if each.name != "layout")
    for at in INPUTS:
        if at < len(node.input) and node.input[at]:
            made.input[at] = names.new(f"{node.input[at]}/steps_first")
            yield _transposed(node.input[at], made.input[at], SWAPPED)
    for at, name in enumerate(node.output):
        if name:
            made.output[at] = names.new(f"{name}/steps_first")
            behind.append(_transposed(made.output[at], name, SWAPPED if at else LAST))
    yield made
    yield from behind


def _transposed(source: str, result: str, axes: Sequence[int]) -> onnx.NodeProto:
    return helper.make_node("Transpose", [source], [result], f"{result}/transpose", perm=axes)
