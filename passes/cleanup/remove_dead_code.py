"""Removes nodes that return their input, and nodes that no output needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from npuc.ir import Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import ACTIVATION, AXES, KERNEL_SHAPE, MAX, MIN, PERM, SCALES, STEPS
from npuc.passes.rewriting.patterns import scalar
from npuc.passes.rewriting.rules import Rewriter, rewrite

Test = Callable[[Rewriter, Node], bool]


def remove_dead_code(graph: Graph) -> Graph:
    """The graph without nodes that return their input.

    One stays between a graph input and a graph output, or between two graph outputs, as both names must exist.
    """
    found = rewrite(graph, drop_no_op)
    alive = {name for node in found.nodes for name in node.inputs} | set(found.outputs)
    dead = any(not alive.intersection(node.outputs) for node in found.nodes)
    return rebuild(found, found.nodes) if dead else found


def drop_no_op(rewriter: Rewriter, node: Node) -> bool:
    """Removes the node if its result is its first input, element by element."""
    test = _NO_OPS.get(node.op)
    if test is None or len(node.outputs) != 1 or rewriter.types[node.inputs[0]] != rewriter.types[node.output]:
        return False
    return test(rewriter, node) and rewriter.bypass(node)


def _always(_draft: Rewriter, _node: Node) -> bool:
    return True


def _all_zero(key: str) -> Test:
    return lambda _draft, node: not any(node.integers(key))


def _identity_permutation(_draft: Rewriter, node: Node) -> bool:
    perm = PERM(node)
    return perm == tuple(range(len(perm)))


def _whole_slice(_draft: Rewriter, node: Node) -> bool:
    """If the result has the input's shape, every element is taken once; a step below 0 would reverse them."""
    return all(step > 0 for step in STEPS(node))


def _unlimited(_draft: Rewriter, node: Node) -> bool:
    return MIN(node) == float("-inf") and MAX(node) == float("inf")


def _one_tap(_draft: Rewriter, node: Node) -> bool:
    return max(KERNEL_SHAPE(node)) == 1


def _one_element(rewriter: Rewriter, node: Node) -> bool:
    return all(extent == 1 for extent in rewriter.shape(node.inputs[0])[2:])


def _same_size(_draft: Rewriter, node: Node) -> bool:
    return all(scale == 1 for scale in SCALES(node))


def _reduces_ones(rewriter: Rewriter, node: Node) -> bool:
    return all(rewriter.shape(node.inputs[0])[axis] == 1 for axis in AXES(node))


def _neutral(number: float) -> Test:
    """Whether the second operand is this number and there is no fused activation."""

    def test(rewriter: Rewriter, node: Node) -> bool:
        return scalar(rewriter, node.inputs[1]) == number and not ACTIVATION(node)

    return test


_NO_OPS: Mapping[str, Test] = {
    "Identity": _always,
    "Reshape": _always,
    "Expand": _always,
    "Cast": _always,
    "Concat": _always,
    "Split": _always,
    "Pad": _all_zero("pads"),
    "Transpose": _identity_permutation,
    "Slice": _whole_slice,
    "Clip": _unlimited,
    "MaxPool": _one_tap,
    "AveragePool": _one_tap,
    "GlobalAveragePool": _one_element,
    "GlobalMaxPool": _one_element,
    "Resize": _same_size,
    "ReduceMean": _reduces_ones,
    "ReduceSum": _reduces_ones,
    "ReduceMax": _reduces_ones,
    "ReduceMin": _reduces_ones,
    "Add": _neutral(0),
    "Sub": _neutral(0),
    "Mul": _neutral(1),
    "Div": _neutral(1),
}
"""Operators with a form that returns the input. Tests may rely on equal types of input and output."""
