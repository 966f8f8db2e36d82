"""Which nodes form one pass: a convolution and what its only reader does."""

from __future__ import annotations

from collections.abc import Sequence

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION


@frozen
class Group:
    """A convolution and the node fused into its pass; `last` is the node whose result the pass computes."""

    conv: Node
    last: Node

    @property
    def operand(self) -> str | None:
        """The map that is added, if any."""
        if self.last.op != "Add":
            return None
        first, second = self.last.inputs
        return second if first == self.conv.output else first


def groups(graph: Graph, nodes: Sequence[Node]) -> dict[Node, Group]:
    """The group of every pass of more than one node, by its last node."""
    integer = set(nodes)
    found: dict[Node, Group] = {}
    taken: set[str] = set()
    for node in nodes:
        if node.op not in ("Add", "PRelu", "LeakyRelu"):
            continue
        candidates = [
            graph.producers[name]
            for name in (node.inputs if node.op == "Add" else node.inputs[:1])
            if _joins(graph, node, name, integer) and name not in taken
        ]
        if candidates:
            conv = max(candidates, key=graph.nodes.index)
            taken.add(conv.output)
            found[node] = Group(conv, node)
    return found


def _joins(graph: Graph, node: Node, name: str, integer: set[Node]) -> bool:
    """Whether a tensor is the result of a convolution that can compute the node in its own pass."""
    conv = graph.producers.get(name)
    if conv is None or conv not in integer or conv.op != "Conv" or graph.only_reader(name) is None:
        return False
    if node.op != "Add":
        return not ACTIVATION(conv)
    other = node.inputs[1] if node.inputs[0] == name else node.inputs[0]
    same = other != name and graph.shape(other) == graph.shape(name) == graph.shape(node.output)
    return same and graph.constant(other) is None and ACTIVATION(conv) in ("", "Relu")
