"""Grouped convolutions as dense ones with block structure, for machines with only dense and depthwise ones."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import GROUP


def expand_groups(graph: Graph) -> Graph:
    """Every grouped Conv that is not depthwise gets group 1 and zeros outside its blocks.

    Exact: the added products are zero. The attribute `blocks` has the number of groups, which tells a target that
    most of the weights are zero.
    """
    nodes: list[Node] = []
    constants, names = dict[str, Array](), graph.names()
    for node in graph.nodes:
        weights = graph.constant(node.inputs[1]) if node.op == "Conv" else None
        group = GROUP(node) if node.op == "Conv" else 1
        if weights is None or group == 1 or group == weights.shape[0] == graph.shape(node.inputs[0])[1]:
            nodes.append(node)
            continue
        name = names.new(f"{node.output}/dense")
        constants[name] = block_diagonal(weights, group)
        inputs = (node.inputs[0], name, *node.inputs[2:])
        nodes.append(
            Node(
                "Conv", inputs, node.outputs, {**node.attrs, "group": 1, "blocks": group}, node.name, node.sources
            )
        )
    return rebuild(graph, nodes, constants) if constants else graph


def block_diagonal(weights: Array, group: int) -> Array:
    """(Co, Ci/group, *kernel) as (Co, Ci, *kernel), zero where input and output are of different groups."""
    outputs, per_group = weights.shape[0] // group, weights.shape[1]
    dense = np.zeros((weights.shape[0], per_group * group, *weights.shape[2:]), weights.dtype)
    for g in range(group):
        rows = slice(g * outputs, (g + 1) * outputs)
        dense[rows, g * per_group : (g + 1) * per_group] = weights[rows]
    return dense
