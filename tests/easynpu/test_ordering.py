"""The order of layers where the graph branches."""

from __future__ import annotations

from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.strips import best_order, depth_first


def branches(*lengths: int) -> Graph:
    """Branches of pools from one input, interleaved, each ending in a small map; a concatenation joins them."""
    pool = {"kernel_shape": (1, 1), "strides": (1, 1)}
    small = {"kernel_shape": (4, 4), "strides": (4, 4)}
    nodes: list[Node] = []
    for step in range(max(lengths)):
        for branch, count in enumerate(lengths):
            if step < count:
                x = f"{branch}.{step - 1}" if step else "x"
                attrs = small if step == count - 1 else pool
                nodes.append(Node("MaxPool", (x,), (f"{branch}.{step}",), attrs, f"{branch}.{step}"))
    ends = tuple(f"{branch}.{count - 1}" for branch, count in enumerate(lengths))
    nodes.append(Node("Concat", ends, ("y",), {"axis": 1}, "y"))
    return build("branches", nodes, {"x": TensorType((1, 16, 16, 16), "int8")}, ["y"], {})


def test_one_branch_is_finished_before_the_next() -> None:
    graph = branches(3, 3, 3)
    order = [node.name.split(".")[0] for node in best_order(graph, graph.nodes, Machine())]
    assert [len(set(order[at : at + 3])) for at in (0, 3, 6)] == [1, 1, 1]


def test_an_order_as_good_as_any_is_kept() -> None:
    graph = branches(2, 1)
    assert best_order(graph, graph.nodes, Machine()) == graph.nodes


def test_every_operand_stands_before_its_reader() -> None:
    graph = branches(4, 2)
    ordered = depth_first(graph, graph.nodes, ["y"], len)
    known = {"x"}
    for node in ordered:
        assert known.issuperset(node.inputs)
        known.update(node.outputs)
    assert len(ordered) == len(graph.nodes)
