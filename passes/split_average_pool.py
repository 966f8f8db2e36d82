"""Averages over large windows in two stages, for machines that cannot keep partial sums."""

from __future__ import annotations

from npuc.ir import Graph, Node
from npuc.ops import rebuild
from npuc.ops.windows import window_of

MOST_POSITIONS = 64


def split_average_pool(graph: Graph) -> Graph:
    """An average over more than 64 positions becomes its columns' averages, then the average of those along rows.

    Exact in real numbers: the mean of means over equal windows. On int8 the map between is rounded once more,
    which moves a result by at most 1 LSB. Averages that leave padding out of the count stay as they are.
    """
    nodes: list[Node] = []
    for node in graph.nodes:
        stages = _stages(graph, node)
        nodes += stages or [node]
    return rebuild(graph, nodes) if len(nodes) > len(graph.nodes) else graph


def _stages(graph: Graph, node: Node) -> list[Node]:
    """The column and the row stage, or nothing where the node is no large average."""
    if node.op not in ("AveragePool", "GlobalAveragePool") or len(graph.shape(node.output)) != 4:
        return []
    if node.op == "GlobalAveragePool":
        height, width = graph.shape(node.inputs[0])[2:]
        node = Node(
            "AveragePool", node.inputs, node.outputs, {"kernel_shape": (height, width)}, node.name, node.sources
        )
    height, width = node.integers("kernel_shape")
    window = window_of(node, (height, width))
    reach = window.reach[0] * window.reach[1]
    padded = any((*window.begins, *window.ends)) or window.ceil_mode
    if reach <= MOST_POSITIONS or 1 in (height, width) or padded:
        return []
    between = f"{node.output}/columns"
    first = {"kernel_shape": (height, 1), "strides": (window.strides[0], 1), "dilations": (window.dilations[0], 1)}
    second = {"kernel_shape": (1, width), "strides": (1, window.strides[1]), "dilations": (1, window.dilations[1])}
    return [
        Node("AveragePool", node.inputs, (between,), first, f"{node.name}/columns", node.sources),
        Node("AveragePool", (between,), node.outputs, second, node.name, node.sources),
    ]
