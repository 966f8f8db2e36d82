"""Restores the ReLU that quantisers omit where rounding to steps from 0 up has the same effect."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, DTYPE, ZERO_POINT
from npuc.passes.rewriting.rules import Rewriter, rewrite

LIMITED = ("Conv", "Add")
MOVES = ("Reshape", "Transpose", "MaxPool")


def limit_at_zero(graph: Graph) -> Graph:
    """Adds a ReLU to a Conv or Add that only a FakeQuantize with steps from 0 up reads, perhaps through moves.

    It changes nothing as long as these steps are kept, and is needed where others replace them.
    """
    return rewrite(graph, _limit)


def _limit(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "FakeQuantize" or ZERO_POINT(node) != (-128 if DTYPE(node) == "int8" else 0):
        return False
    producer, moves = rewriter.private(node.inputs[0]), list[Node]()
    while producer is not None and producer.op in MOVES:
        moves.insert(0, producer)
        producer = rewriter.private(producer.inputs[0])
    if producer is None or producer.op not in LIMITED or ACTIVATION(producer):
        return False
    limited = rewriter.fresh(f"{producer.output}/limited")
    new = [replace(producer.with_attrs(activation="Relu"), outputs=(limited,))]
    for move in moves:
        new.append(replace(move, inputs=(new[-1].output,), outputs=(rewriter.fresh(f"{move.output}/limited"),)))
    rewriter.replace(node, *new, replace(node, inputs=(new[-1].output,)))
    return True
