"""Scales and zero points that a quantised model contains: used as they are, without calibration.

In the float graph a FakeQuantize node specifies that and how a tensor is rounded; QuantizeLinear and
DequantizeLinear at the network's boundaries do the same for the tensors they convert. Data movement passes scale
and zero point on. Integer weights need no annotation: see `integers_of`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from npuc.errors import DataError
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import ACTIVATION, DTYPE, SCALE, SELECTS, ZERO_POINT
from npuc.ops.quantisation import CONVERSIONS
from npuc.quantize.arithmetic.tables import is_relu
from npuc.quantize.scales.assignment import components


@frozen
class Steps:
    """An int8 tensor's scale and zero point: an element is scale * (integer - zero)."""

    scale: float
    zero: int = 0

    @property
    def reach(self) -> float:
        """The largest magnitude that an int8 can represent."""
        return self.scale * max(128 + self.zero, 127 - self.zero)

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest value that an int8 can represent."""
        return self.scale * (-128 - self.zero), self.scale * (127 - self.zero)


def steps_of(graph: Graph, node: Node) -> Steps | None:
    """Scale and zero point in a FakeQuantize node or a conversion to or from 8 bits; None for other nodes.

    Unsigned integers are shifted by -128 to int8.
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


NOTHING_GIVEN: Mapping[str, Steps] = {}


def given_steps(
    graph: Graph,
    tensors: Sequence[str],
    equal: Iterable[tuple[str, str]],
    table: Mapping[str, Steps] = NOTHING_GIVEN,
) -> dict[str, Steps]:
    """Scales and zero points of the tensors for which the model, or a table of the user, gives any.

    equal: pairs of tensors that always share them. The node that computes a tensor takes precedence over nodes
    that read it; among several, those count that reach as far as all (`covering`), and the others become
    conversions (a FakeQuantize between different scales). A reader's rounding applies only if every reader rounds
    the tensor. A limit at 0, a negation and a selection inherit from their input. table: by the model's names;
    raises DataError (E406) where it contradicts itself or the model.
    """
    pairs = list(equal)
    class_of, tied = components(tensors, pairs), frozenset(pairs)
    found: dict[str, Steps] = {}
    members: dict[str, list[str]] = {}
    for name, leader in class_of.items():
        members.setdefault(leader, []).append(name)
    said = [(node, steps) for node in graph.nodes if (steps := steps_of(graph, node)) is not None]
    computed: dict[str, list[Steps]] = {}
    for node, steps in said:
        if node.op != "QuantizeLinear" and node.output in class_of:
            computed.setdefault(class_of[node.output], []).append(steps)
    found.update({leader: covering(several) for leader, several in computed.items()})
    found.update(_table_steps(graph, class_of, table, found))
    for node in graph.nodes:
        steps = _handed_on(node, found.get(class_of.get(node.inputs[0], "")))
        if steps is not None and node.output in class_of:
            found.setdefault(class_of[node.output], steps)
    read: dict[str, list[Steps]] = {}
    for node, steps in said:
        if node.op != "DequantizeLinear" and node.inputs[0] in class_of:
            leader = class_of[node.inputs[0]]
            if leader not in found and all(_only_rounded(graph, each, tied) for each in members[leader]):
                read.setdefault(leader, []).append(steps)
    found.update({leader: covering(several) for leader, several in read.items()})
    return {name: found[leader] for name, leader in class_of.items() if leader in found}


def _table_steps(
    graph: Graph, class_of: Mapping[str, str], table: Mapping[str, Steps], found: Mapping[str, Steps]
) -> dict[str, Steps]:
    """The steps of a table by class of tensors. found: those that the model gives."""
    asked: dict[str, tuple[str, Steps]] = {}
    for tensor, leader in class_of.items() if table else ():
        name = of_model(graph, tensor)
        if name not in table:
            continue
        other, steps = asked.setdefault(leader, (name, table[name]))
        if steps != table[name]:
            reason = f"'{other}', of which it has the same integers, has {steps.scale:g} and {steps.zero}"
            raise contradiction(name, table[name], reason)
        if found.get(leader, steps) != steps:
            given = found[leader]
            raise contradiction(name, steps, f"the model gives it {given.scale:g} and {given.zero}")
    return {leader: steps for leader, (_, steps) in asked.items()}


def contradiction(name: str, steps: Steps, reason: str) -> DataError:
    """The error (E406) for an entry of a table that cannot be kept."""
    said = f"the table gives it the scale {steps.scale:g} and the zero point {steps.zero}, but {reason}"
    return DataError("E406", said, tensor=name, remedy="correct the entry, or leave it out")


def of_model(graph: Graph, tensor: str) -> str:
    """The ONNX model's tensor with the same elements, if a pass has put a reshape behind or before it."""
    if tensor in graph.reserved:
        return tensor
    reshaped = [each.output for each in graph.readers.get(tensor, ()) if each.op == "Reshape"]
    producer = graph.producers.get(tensor)
    reshaped += [producer.inputs[0]] if producer is not None and producer.op == "Reshape" else []
    return next((name for name in reshaped if name in graph.reserved), tensor)


def only_of_inputs(graph: Graph) -> bool:
    """Whether nothing but its integer inputs, such as frames, has scales that the model gives."""
    made = [node for node in graph.nodes if node.op in (*CONVERSIONS, "QuantizeLinear", "DequantizeLinear")]
    return all(node.op == "DequantizeLinear" and source_input(graph, node.inputs[0]) is not None for node in made)


def source_input(graph: Graph, name: str) -> str | None:
    """The network input whose elements a tensor contains, possibly moved, or the bytes in a border; else None."""
    while name in graph.producers:
        producer = graph.producers[name]
        computed = [each for each in producer.inputs if each not in graph.constants]
        bordered = producer.op == "Concat" and graph.tensors[name].dtype == "uint8" and len(computed) == 1
        if producer.op not in ("Transpose", "Reshape") and not bordered:
            return None
        name = computed[0]
    return name if name in graph.inputs else None


NEARLY = 1 / 64
"""The part of all values that steps may lack and still count as reaching all."""


def covering(several: Sequence[Steps]) -> Steps:
    """The first steps that reach all values of the others; if none do, the finest that reach all.

    >>> covering([Steps(0.25), Steps(0.5), Steps(1.0)]), covering([Steps(1.0, -128), Steps(0.5, 127)])
    (Steps(scale=1.0, zero=0), Steps(scale=1.5, zero=-43))
    """
    low, high = min(each.limits[0] for each in several), max(each.limits[1] for each in several)
    tolerance = NEARLY * (high - low)
    reaching = (each for each in several if each.limits[0] - low + high - each.limits[1] <= tolerance)
    scale = (high - low) / 255
    return next(reaching, None) or Steps(scale, round(-128 - low / scale))


def _only_rounded(graph: Graph, tensor: str, equal: Collection[tuple[str, str]]) -> bool:
    """Whether every reader of a tensor rounds it, or moves it to a result with the same scale and zero point.

    Otherwise the given scale need not cover the values that others read.
    """
    return tensor not in graph.outputs and all(
        each.op in ("FakeQuantize", "QuantizeLinear") or _moves(each, tensor, equal)
        for each in graph.readers[tensor]
    )


def _moves(reader: Node, tensor: str, equal: Collection[tuple[str, str]]) -> bool:
    """Whether the reader requires that its result shares the tensor's scale and zero point."""
    first = reader.inputs[0]
    return all((first, other) in equal for other in {tensor, reader.output} - {first})


def _handed_on(node: Node, steps: Steps | None) -> Steps | None:
    """The scale and zero point that make a node's result exact, given its input's: -1 - q is the negative of q."""
    if steps is None or is_relu(node) or (node.op == "Conv" and SELECTS(node) and not ACTIVATION(node)):
        return steps
    return Steps(steps.scale, -1 - steps.zero if steps.zero else 0) if node.op == "Neg" else None


def reaches(nodes: Sequence[Node], given: Mapping[str, Steps]) -> dict[str, float]:
    """The largest magnitude of tensors on one side of a Rescale whose other side has a given scale."""
    found: dict[str, float] = {}
    for node in nodes:
        x, y = node.inputs[0], node.output
        if node.op == "Rescale" and (x in given) != (y in given):
            found[y if x in given else x] = given[x if x in given else y].reach
    return found


def integers_of(w: Array) -> tuple[Array, Array] | None:
    """The integers from which float weights were dequantised, and the scale of each output channel.

    w: (Co, ...) float32, every channel a scale times integers in -255..255. Result: integers (int16) in w's shape,
    scales (Co,) float64, the largest that fit; None if a channel is no such multiple. Only the values are used, so
    passes lose nothing: transposed, permuted, sliced and rescaled weights keep their grid.
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
    """The float32 within two units in the last place that reproduces the weights exactly; else the scale."""
    near = np.float32(scale)
    for offset in (0, 1, -1, 2, -2):
        found = near + offset * np.spacing(near)
        if np.array_equal(found * integers.astype(np.float32), w):
            return float(found)
    return scale


STRAY = 2.0**-21
"""Permitted deviation of a float32 product of scale and integer from the grid, relative to the largest weight."""
