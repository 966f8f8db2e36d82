"""Broadcast operands that the host repeats, as the document has no pitch of 0."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import AXIS
from npuc.targets.easynpu.layers.addressing import map_shape
from npuc.targets.easynpu.layers.operators import OPERATORS
from npuc.text.names import Names


def with_repeated(graph: Graph) -> Graph:
    """The integer graph in which Concats of copies extend broadcast operands of sums and products."""
    nodes: list[Node] = []
    known: dict[tuple[str, tuple[int, ...]], str] = {}
    names = graph.names()
    for node in graph.nodes:
        inputs = list(node.inputs)
        if node.op in ("IntAdd", "IntMul"):
            shape = graph.shape(node.output)
            for at, name in enumerate(inputs[:2]):
                if _is_repeated(graph.shape(name), shape):
                    key = name, shape
                    if key not in known:
                        nodes += (copies := _copies(graph, names, name, shape, node))
                        known[key] = copies[-1].output
                    inputs[at] = known[key]
        nodes.append(replace(node, inputs=tuple(inputs)))
    return rebuild(replace(graph, operators=OPERATORS), nodes) if known else graph


def _is_repeated(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    (channels, *size), (wanted, *whole) = map_shape(shape), map_shape(result)
    return len(shape) == len(result) == 4 and channels == wanted and size != whole


def _copies(graph: Graph, names: Names, name: str, shape: tuple[int, ...], reader: Node) -> list[Node]:
    found: list[Node] = []
    for axis in (2, 3):
        count = shape[axis] // graph.shape(name)[axis]
        if count > 1:
            source = found[-1].output if found else name
            result = names.new(f"{name}/{'rows' if axis == 2 else 'columns'}/{shape[axis]}")
            found.append(Node("Concat", (source,) * count, (result,), {AXIS.name: axis}, result, reader.sources))
    return found
