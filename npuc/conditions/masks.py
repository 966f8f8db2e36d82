"""Masks before a Softmax: terms that are excluded by values far below the others, such as -1e4.

The Softmax ignores such values, but a machine's number format does not: 8 bits that reach -1e4 have steps of 80,
and in fp16 a row that is masked entirely loses the differences between its terms. The host computes them in
float32, together with the Softmax.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np

from npuc.conditions.constraints import refused
from npuc.errors import Problem
from npuc.ir import Array, Node
from npuc.ops.attributes import VALUE
from npuc.ops.movement import ONNX_MOVEMENT

HEADS = ("Softmax", "LogSoftmax", "ArgMax", "TopK", "ReduceLogSumExp")
"""Operators that ignore what is far below the largest."""
ADDING = ("Add", "Sub", "Where", "Concat", "Pad")
"""Operators that bring in a mask."""
PASSING = (
    *ADDING, *ONNX_MOVEMENT, "Squeeze", "Unsqueeze", "Flatten", "Expand", "Gather", "Cast",
    "Mul", "Div", "Max", "Min", "Clip",
)  # fmt: skip
"""Operators whose result is masked if an operand is."""
LAYERS = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "QLinearConv", "QLinearMatMul",
    "ConvInteger", "MatMulInteger", "QGemm",
)  # fmt: skip
"""Operators that compute logits. What the inputs give without them may be a mask."""
LARGEST = 16.0
"""The largest constant that is no mask: e to the power of -16 is next to nothing beside 1 in float32."""
LARGEST_BIAS = 1000.0
"""The same of a layer's own bias, which a mask was folded into: that of a trained layer is smaller."""


def masking(nodes: Sequence[Node], constants: Mapping[str, Array]) -> tuple[Node, ...]:
    """The nodes that add a mask before a Softmax, those that compute it, and those on the way to the Softmax.

    nodes: in topological order; an operator that npuc does not know has its ONNX name.
    """
    logits, masked = _masked(nodes, constants)
    wanted, sources = set[str](), set[str]()
    found: list[Node] = []
    largest = {name: node.inputs[:1] for node in nodes if node.op == "ReduceMax" for name in node.outputs}
    for node in reversed(nodes):
        of_several = node.op == "Sub" and any(largest.get(name) == node.inputs[:1] for name in node.inputs[1:])
        if node.op in HEADS or of_several:
            wanted.update(node.inputs[:1])
        results = set(filter(None, node.outputs))
        if results & sources:
            sources.update(node.inputs)
            found.append(node)
        elif results & wanted & masked:
            wanted.update(node.inputs)
            sources.update(name for name in node.inputs if node.op in ADDING and name not in logits)
            found.append(node)
    return tuple(reversed(found))


def _masked(nodes: Sequence[Node], constants: Mapping[str, Array]) -> tuple[set[str], set[str]]:
    """The tensors that layers contribute to, and those to which a mask was added."""
    logits, masked, samples = set[str](), set[str](), _samples(nodes)
    for node in nodes:
        if _adds(node, constants, logits, samples) or (node.op in PASSING and not masked.isdisjoint(node.inputs)):
            masked.update(node.outputs)
        if node.op in LAYERS or not logits.isdisjoint(node.inputs):
            logits.update(node.outputs)
    return logits, masked


def _samples(nodes: Sequence[Node]) -> set[str]:
    """The tensors that layers read, other than through a Softmax: no masks, even if added to logits."""
    found = set[str]()
    for node in reversed(nodes):
        if node.op in LAYERS or (node.op not in HEADS and not found.isdisjoint(node.outputs)):
            found.update(node.inputs)
    return found


def _adds(node: Node, constants: Mapping[str, Array], logits: Set[str], samples: Set[str]) -> bool:
    """Whether a node adds a mask: a large constant, or to logits what the network's inputs give without layers."""
    if node.op == "Pad":
        return VALUE(node) <= -LARGEST
    if node.op in ("Conv", "Gemm"):
        return _reaches(node.inputs[2:], constants, LARGEST_BIAS)
    if node.op not in ADDING:
        return False
    given = any(name not in logits and name not in samples and name not in constants for name in node.inputs)
    added = node.op in ("Add", "Sub") and given and not logits.isdisjoint(node.inputs)
    return added or _reaches(node.inputs, constants, LARGEST)


def _reaches(names: Iterable[str], constants: Mapping[str, Array], limit: float) -> bool:
    """Whether a float constant has a value of this magnitude."""
    values = (constants[name] for name in names if name in constants)
    return any(value.dtype.kind == "f" and bool((np.abs(value) >= limit).any()) for value in values)


def problems(nodes: Sequence[Node], constants: Mapping[str, Array], precision: str) -> list[Problem]:
    """A problem for each of these nodes, unless the precision is fp32, which has the range."""
    return [
        refused(
            node,
            f"it belongs to a mask before a Softmax, for which {precision} lacks range",
            tensor=next(filter(None, node.outputs)),
            limit=f"what is added to logits comes from layers, or is a constant below {LARGEST:g}",
            remedy="a target with fp32, or the host (leave out --strict)",
        )
        for node in (masking(nodes, constants) if precision != "fp32" else ())
    ]
