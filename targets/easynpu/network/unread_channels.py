"""Channels that nothing reads: networks of depthwise convolutions have many, whose weights decayed in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import GROUP
from npuc.passes.rewriting.rules import Rewriter
from npuc.quantize.arithmetic.tables import TABLE_OPS

NOTHING = 2.0**-60
"""The part of a layer's largest weight below which a weight does not count: float32 resolves 2^-24 of a sum."""
POINTWISE = ("Relu", "FakeQuantize", *TABLE_OPS)


def drop_unread_channels(graph: Graph) -> Graph:
    """Channels that every reader multiplies by 0, or by less than rounding shows, are not computed.

    A dense Conv loses these outputs, and the operators on single channels between it and the dense Convs that read
    them lose the channels. A channel remains where all would go.
    """
    nodes = {node: node for node in graph.nodes}
    constants, names = dict(graph.constants), graph.names()

    def part(name: str, read: Array, axis: int = 0) -> str:
        constants[made := names.new(f"{name}/read")] = np.compress(read, constants[name], axis)
        return made

    for head in reversed(graph.nodes):
        if not _is_dense(graph, head) or (found := _channels_behind(graph, head)) is None:
            continue
        inner, readers = found
        weights = [constants[nodes[each].inputs[1]] for each in readers]
        read = np.any([np.abs(w).max(axis=(0, 2, 3)) > NOTHING * np.abs(w).max() for w in weights], axis=0)
        read[0] |= not read.any()
        if read.all():
            continue
        new = {node.output: names.new(f"{node.output}/read") for node in (head, *inner)}
        for node in (head, *inner, *readers):
            x, *others = nodes[node].inputs
            if node in readers:
                others[0] = part(others[0], read, 1)
            elif node.op == "Conv":
                others = [part(name, read) if name else name for name in others]
            changed = replace(nodes[node], inputs=(new.get(x, x), *others))
            if node not in readers:
                changed = replace(changed, outputs=(new[node.output],))
            if node in inner and node.op == "Conv":
                changed = changed.with_attrs(group=int(read.sum()))
            nodes[node] = changed
    changed = [*nodes.values()]
    return rebuild(graph, changed, constants) if changed != list(graph.nodes) else graph


def _is_dense(graph: Graph, node: Node) -> bool:
    """Whether a node is a dense Conv of an image with constant weights."""
    known = all(name in graph.constants for name in node.inputs[1:] if name)
    return node.op == "Conv" and GROUP(node) == 1 and known and graph.constants[node.inputs[1]].ndim == 4


def _channels_behind(graph: Graph, head: Node) -> tuple[Sequence[Node], Sequence[Node]] | None:
    """The operators on single channels behind a Conv, and the dense Convs that read their results.

    None if anything else reads a result, or it is an output of the network.
    """
    inner, readers, waiting = list[Node](), list[Node](), [head.output]
    while waiting:
        name = waiting.pop()
        if name in graph.outputs:
            return None
        for node in graph.readers[name]:
            if _is_dense(graph, node) and node.inputs[0] == name:
                readers.append(node)
            elif is_depthwise(graph, node) or (node.op in (*POINTWISE, "MaxPool") and len(node.inputs) == 1):
                inner.append(node)
                waiting += node.outputs
            else:
                return None
    return inner, readers


def is_depthwise(graph: Graph | Rewriter, node: Node) -> bool:
    """Whether a node is a Conv with constant parameters that gives each of several channels one result."""
    if node.op != "Conv" or any(name not in graph.constants for name in node.inputs[1:] if name):
        return False
    return 1 < GROUP(node) == graph.shape(node.inputs[0])[1] == graph.shape(node.inputs[1])[0]
