"""Scales and zero points that a quantised model brings along: taken as they are, without calibration.

In the float graph a FakeQuantize node says that a tensor is rounded there, and how; QuantizeLinear and
DequantizeLinear at the network's edges say the same of what they convert. A tensor shares its steps with those
that a data movement makes of it. The given integers of weights need no annotation: see `integers_of`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import DTYPE, SCALE, ZERO_POINT
from npuc.quantize.arithmetic.tables import is_relu
from npuc.quantize.scales.assignment import components


@dataclass(frozen=True)
class Steps:
    """An int8 tensor's scale, and the integer that stands for 0: an element is scale * (integer - zero)."""

    scale: float
    zero: int = 0

    @property
    def reach(self) -> float:
        """The largest magnitude that an int8 integer stands for."""
        return self.scale * max(128 + self.zero, 127 - self.zero)

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest value that an int8 integer stands for."""
        return self.scale * (-128 - self.zero), self.scale * (127 - self.zero)


def steps_of(graph: Graph, node: Node) -> Steps | None:
    """What a FakeQuantize node, or a conversion to or from 8 bits, says of its tensor; None for other nodes.

    An unsigned integer counts less 128, so that it is an int8.
    """
    if node.op == "FakeQuantize":
        scale, zero, dtype = SCALE(node), ZERO_POINT(node), DTYPE(node)
    elif node.op in ("QuantizeLinear", "DequantizeLinear"):
        values = [graph.constant(name) for name in node.inputs[1:]]
        if len(values) != 2 or any(value is None or np.unique(value).size != 1 for value in values):
            return None
        scale, zero = (value.flat[0].item() for value in values if value is not None)
        dtype = graph.tensors[node.inputs[2]].dtype
    else:
        return None
    return Steps(scale, zero - 128 * (dtype == "uint8")) if dtype in ("int8", "uint8") else None


def given_steps(graph: Graph, tensors: Sequence[str], equal: Iterable[tuple[str, str]]) -> dict[str, Steps]:
    """The steps of those of the tensors that the model gives any.

    equal: tensors that share their steps whatever they are. What is said of a tensor where it is read comes
    before what is said where it is made; of several the first in the graph holds, and the others take a
    conversion (a FakeQuantize between different steps). Where something reads the tensor as it is, what another
    reader rounds to says nothing of it. A limit at 0 or a negative of what has steps needs no others.
    """
    pairs = list(equal)
    class_of, tied = components(tensors, pairs), frozenset(pairs)
    found: dict[str, Steps] = {}
    members: dict[str, list[str]] = {}
    for name, leader in class_of.items():
        members.setdefault(leader, []).append(name)
    said = [(node, steps) for node in graph.nodes if (steps := steps_of(graph, node)) is not None]
    for node, steps in said:
        if node.op != "QuantizeLinear" and node.output in class_of:
            found.setdefault(class_of[node.output], steps)
    for node in graph.nodes:
        steps = _handed_on(node, found.get(class_of.get(node.inputs[0], "")))
        if steps is not None and node.output in class_of:
            found.setdefault(class_of[node.output], steps)
    for node, steps in said:
        if node.op != "DequantizeLinear" and node.inputs[0] in class_of:
            leader = class_of[node.inputs[0]]
            if leader not in found and all(_only_rounded(graph, each, tied) for each in members[leader]):
                found[leader] = steps
    return {name: found[leader] for name, leader in class_of.items() if leader in found}


def _only_rounded(graph: Graph, tensor: str, equal: Collection[tuple[str, str]]) -> bool:
    """Whether all that reads a tensor rounds it, or moves it to a result with its steps.

    Otherwise given steps need not reach the values that others read.
    """
    return tensor not in graph.outputs and all(
        each.op in ("FakeQuantize", "QuantizeLinear") or _moves(each, tensor, equal)
        for each in graph.readers[tensor]
    )


def _moves(reader: Node, tensor: str, equal: Collection[tuple[str, str]]) -> bool:
    """Whether it is the reader that ties its result to the tensor."""
    first = reader.inputs[0]
    return all((first, other) in equal for other in {tensor, reader.output} - {first})


def _handed_on(node: Node, steps: Steps | None) -> Steps | None:
    """The steps in which a node's result is exact, if its input has these: -1 - q is the negative of q."""
    if steps is None or is_relu(node):
        return steps
    return Steps(steps.scale, -1 - steps.zero if steps.zero else 0) if node.op == "Neg" else None


def reaches(nodes: Sequence[Node], given: Mapping[str, Steps]) -> dict[str, float]:
    """The largest magnitude of the tensors beside a Rescale whose other side has given steps."""
    found: dict[str, float] = {}
    for node in nodes:
        x, y = node.inputs[0], node.output
        if node.op == "Rescale" and (x in given) != (y in given):
            found[y if x in given else x] = given[x if x in given else y].reach
    return found


def integers_of(w: Array) -> tuple[Array, Array] | None:
    """The integers that float weights were dequantised from, and the scale of each output channel.

    w: (Co, ...) float32, every channel a scale times integers of -255..255. Result: integers (int16) in w's shape,
    scales (Co,) float64, the largest that fit; None where a channel is no such multiple. As it needs nothing but
    the values, no pass can lose what it finds: transposed, permuted, sliced and rescaled weights keep their grid.
    """
    flat = w.reshape(len(w), -1).astype(np.float64)
    largest = np.abs(flat).max(axis=1)
    scales = np.ones(len(w))
    for channel in np.flatnonzero(largest):
        candidates = largest[channel] / np.arange(1, 256)
        steps = flat[channel][:, None] / candidates
        fits = (np.abs(steps - np.rint(steps)) < STRAY * np.arange(1, 256)).all(axis=0)
        if not fits.any():
            return None
        scales[channel] = candidates[np.argmax(fits)]
    integers = np.rint(flat / scales[:, None]).astype(np.int16)
    exact = [_float32_scale(*each) for each in zip(w.reshape(len(w), -1), integers, scales, strict=True)]
    return integers.reshape(w.shape), np.array(exact)


def _float32_scale(w: Array, integers: Array, scale: float) -> float:
    """The float32 that these integers were multiplied by, of those within two steps; the scale if none was."""
    near = np.float32(scale)
    for offset in (0, 1, -1, 2, -2):
        found = near + offset * np.spacing(near)
        if np.array_equal(found * integers.astype(np.float32), w):
            return float(found)
    return scale


STRAY = 2.0**-21
"""By how much of the largest weight a float32 product of scale and integer may miss the grid."""

NOTHING_GIVEN: Mapping[str, Steps] = {}
