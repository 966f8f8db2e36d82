"""Which nodes the array runs, and which of them are fused behind another.

Source: easynpu, Layer fusion: batch normalisation, activations and elementwise operations follow in the same pass
over a tile, in any order; pools do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npuc.ir import Graph, Node
from npuc.ops.attributes import AVERAGE, AXIS, FUSED_INPUT, GROUP
from npuc.ops.windows import window_of
from npuc.targets.easynpu.layers.addressing import interleaved, is_alias, is_window
from npuc.targets.easynpu.layers.operators import WORD_OP
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, SLOPE_WORDS, TABLE_WORDS
from npuc.targets.easynpu.machine.parameters import Machine

POINTWISE = ("IntRelu", "IntTable", "IntPRelu")
"""Pointwise functions, which can be fused behind any result but a pool's."""
ARRAY_OPS = ("IntConv", "IntAdd", "IntSum", "IntMul", "MaxPool", WORD_OP, *POINTWISE)


def runs_on_array(graph: Graph, node: Node) -> bool:
    """Whether the PE array executes a node of the integer graph, or address arithmetic replaces it."""
    if graph.tensors[node.output].dtype != "int8":
        return False
    if node.op == "Concat":
        return len(graph.shape(node.output)) == 4 and AXIS(node) > 0
    if node.op == "DepthToSpace":
        return interleaved(graph, node) is not None
    return node.op in ARRAY_OPS or is_alias(graph, node) or is_window(graph, node)


def conv_mnemonic(group: int, channels: int, outputs: int) -> str:
    """The mnemonic: dwconv where every channel is its own group, else conv."""
    return "dwconv" if group == channels == outputs and group > 1 else "conv"


def is_batch_norm(graph: Graph, node: Node) -> bool:
    """Whether an integer convolution is w * x + b per channel: depthwise, 1x1, stride 1, no padding."""
    if node.op != "IntConv" or AVERAGE(node):
        return False
    shape, outputs = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])[0]
    if conv_mnemonic(GROUP(node), shape[1], outputs) != "dwconv":
        return False
    window = window_of(node, (1, 1))
    taps = graph.shape(node.inputs[1])[2:]
    return taps == (1, 1) and window.strides == (1, 1) and not any((*window.begins, *window.ends))


def fused_behind(graph: Graph, nodes: Sequence[Node], machine: Machine) -> Mapping[Node, Node]:
    """For each fused node, the node that it is fused behind.

    A chain ends where the bias and scale pads are full.
    """
    present = set(nodes)
    found: dict[Node, Node] = {}
    entries = {node: _pad_entries(node) for node in nodes}
    for node in nodes:
        producer = graph.producers.get(_continued(graph, node))
        if producer is None or producer not in present or AVERAGE(producer):
            continue
        adds = node.op == "IntAdd"
        heads = ("IntConv",) if adds else ("IntConv", "IntAdd", "IntSum", "IntMul", *POINTWISE)
        same = graph.shape(producer.output) == graph.shape(node.output)
        if adds and producer in found:  # a chain has one operand, which an earlier sum may already use
            continue
        held = entries[producer] + entries[node]
        if held > machine.parameter_pad_entries:
            continue
        if producer.op in heads and same and graph.only_reader(producer.output) is node:
            found[node] = producer
            entries[node] = held
    return found


def _pad_entries(node: Node) -> int:
    """Entries of the bias and scale pads that a node takes per 16 channels; a table takes one per segment."""
    return LANES if node.op == "IntTable" else int(group_words(node) > 0)


def _continued(graph: Graph, node: Node) -> str:
    """The input whose producer the node may be fused behind; empty if there is none."""
    index = FUSED_INPUT(node)
    if node.op == "IntAdd" and index is not None and node.inputs[0] != node.inputs[1]:
        return node.inputs[index]
    return node.inputs[0] if node.op in POINTWISE or is_batch_norm(graph, node) else ""


def group_words(node: Node) -> int:
    """Weight words per 16 channels of a node that is fused behind another."""
    words = {
        "IntAdd": BS_WORDS,
        "IntMul": BS_WORDS,
        "IntSum": 2 * (BS_WORDS + 1),
        "IntPRelu": SLOPE_WORDS,
        "IntConv": BS_WORDS + 1,
    }
    return words.get(node.op, 0)


def table_words(chain: Sequence[Node]) -> int:
    """Weight words of the tables of a chain, for any number of channels."""
    return TABLE_WORDS * sum(node.op == "IntTable" for node in chain)
