"""The layers of a floating-point program, each alone: what onnxruntime makes of the inputs that the machine has.

Nothing is hidden behind errors of earlier layers, and rounding is bounded: a sum of products is off by no more
than a few units in the last place of the sum of their magnitudes, whatever the order of its terms. Source:
Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npuc.external_weights import without_weights
from npuc.frontend.external_data import array_of
from npuc.ir import Array
from npuc.reference import session, with_outputs
from npuc.storage.pieces import Content
from npuc.verification.described import network

UNITS = {"fp16": 2.0**-11, "fp32": 2.0**-24}
"""Half a unit in the last place of 1, by precision."""
LARGEST = {"fp16": 65504.0}
"""Where a precision saturates: beyond, nothing is known of a sum."""
SMALLEST = {"fp16": 2.0**-14}
"""Below, a precision rounds values as if they were so large."""
ROUNDINGS = 32
"""How many of them rounding may take a result from another: about three times the most of any trained network."""
CUT, SIZE, LEAST = "/found", "/size", "/least"
LARGE = 1 << 26
"""Bytes of weights that are better not in memory all at once."""


@dataclass(frozen=True)
class Alone:
    """A layer's result on the machine's own inputs, and how far rounding may take each element from it."""

    exact: Array
    room: Array

    def wrong(self, found: Array) -> Array:
        """Which elements rounding does not explain; what is infinite or undefined in both is right."""
        with np.errstate(all="ignore"):
            near = np.abs(found.astype(np.float64) - self.exact) <= self.room
        return ~(near | (found == self.exact) | (np.isnan(found) & np.isnan(self.exact)))


class Isolated:
    """The float network (reference.onnx) with every edge cut that the machine shows."""

    def __init__(
        self,
        reference: Content,
        shapes: Mapping[str, Any],
        shown: Collection[str],
        precision: str,
        *,
        confined: bool = True,
        few_runs: bool = False,
    ) -> None:
        """shapes: of the network's tensors; shown: those whose values will be known.

        confined: it runs in a process with limits. few_runs: it is opened faster, and runs slower.
        """
        model, outer = network(reference)
        written = {name for node in model.graph.node for name in node.output}
        self.names = sorted(written.intersection(shown) - _integers(model))
        self.unit, self.largest = UNITS[precision], LARGEST.get(precision, np.inf)
        self.smallest = SMALLEST.get(precision, 0.0)
        cut, inner = without_weights(_cut(model, shapes, set(self.names)))
        self.cut, self.weights = cut, {**outer, **inner}
        self.options = {"confined": confined, "few_runs": few_runs}
        self.large = few_runs and sum(each.nbytes for each in self.weights.values()) > LARGE
        """Its weights are better not in memory together: some layers after others, a session after the other."""
        self.opened: dict[bool, Any] = {}
        if not self.large:
            self.opened = {magnitudes: self._open(self.names, magnitudes) for magnitudes in (False, True)}

    def __call__(self, known: Mapping[str, Array]) -> Iterator[tuple[str, Alone]]:
        """Every layer alone. known: the network's inputs and what the machine shows, for one sample."""
        for names in self._groups():
            exact, sizes = (self._values(names, known, magnitudes) for magnitudes in (False, True))
            for name in names:
                yield name, Alone(exact[name], self._room(exact[name], sizes[name]))

    def _groups(self) -> Iterator[list[str]]:
        """The layers; of a large network those with so many bytes of weights at a time, or one."""
        group, size = list[str](), 0
        for name in self.names:
            read = {each for node in _nodes_of(self.cut, [name]) for each in node.input} if self.large else set()
            own = sum(self.weights[each].nbytes for each in read & self.weights.keys())
            if group and size + own > LARGE:
                yield group
                group, size = [], 0
            group.append(name)
            size += own
        yield group

    def _open(self, names: Sequence[str], magnitudes: bool) -> Any:
        """A session of some of the layers, or of the sums of the magnitudes of what they add."""
        model = _pruned(self.cut, names)
        weights = {each.name: self.weights[each.name] for each in model.graph.initializer if _outside(each)}
        return session(_absolute(model, self.smallest) if magnitudes else model, weights, **self.options)

    def _values(self, names: Sequence[str], known: Mapping[str, Array], magnitudes: bool) -> dict[str, Array]:
        """What such a session gives."""
        if not names:
            return {}
        run = self.opened.get(magnitudes) or self._open(names, magnitudes)
        feeds = {each.name: known[each.name.removesuffix(CUT)] for each in run.get_inputs()}
        if magnitudes:
            feeds = {name: np.asarray(np.abs(values)) for name, values in feeds.items()}
        return dict(zip(names, run.run(list(names), feeds), strict=True))

    def _room(self, exact: Array, magnitudes: Array) -> Array:
        """What is not a sum has no larger magnitudes: there the largest value counts."""
        largest = np.abs(exact).max(initial=0, where=np.isfinite(exact))
        sizes = np.maximum(np.abs(magnitudes).astype(np.float64), self.smallest)
        return np.where(sizes < self.largest, ROUNDINGS * self.unit * (sizes + largest), np.inf)


def _integers(model: Any) -> set[str]:
    """The tensors that QuantizeLinear gives, moved or not: whole numbers, which are compared as they are."""
    found: set[str] = set()
    for node in model.graph.node:
        moved = node.op_type != "DequantizeLinear" and found.intersection(node.input[:1])
        if node.op_type == "QuantizeLinear" or moved:
            found.update(node.output)
    return found


def _cut(model: Any, shapes: Mapping[str, Any], names: set[str]) -> Any:
    """The model that reads these tensors as inputs of its own, `tensor/found`."""
    from onnx import TensorProto, helper

    found: dict[str, Any] = {}
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            if name in names:
                node.input[position] = f"{name}{CUT}"
                found[name] = helper.make_tensor_value_info(f"{name}{CUT}", TensorProto.FLOAT, shapes[name])
    model.graph.input.extend(found.values())
    return model


def _nodes_of(model: Any, names: Collection[str]) -> list[Any]:
    """The nodes that these tensors depend on, in order."""
    wanted, found = set(names), list[Any]()
    for node in reversed(model.graph.node):
        if wanted.intersection(node.output):
            found.append(node)
            wanted.update(node.input)
    return found[::-1]


def _pruned(model: Any, names: Sequence[str]) -> Any:
    """A copy of the model that gives these tensors, and has nothing else."""
    import onnx

    nodes = _nodes_of(model, names)
    read = {name for node in nodes for name in node.input}
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.node[:], found.graph.initializer[:], found.graph.input[:]
    found.graph.node.extend(nodes)
    found.graph.initializer.extend(each for each in model.graph.initializer if each.name in read)
    found.graph.input.extend(each for each in model.graph.input if each.name in read)
    return with_outputs(found, names)


def _outside(tensor: Any) -> bool:
    return tensor.data_location == tensor.EXTERNAL


def _absolute(model: Any, least: float) -> Any:
    """The model with the magnitudes of its weights, which are at least so large; the given one is changed.

    onnxruntime computes those of heavy ones, which lie beside the model, when it needs them.
    """
    from onnx import TensorProto, helper, numpy_helper

    outer = [each.name for each in model.graph.initializer if _outside(each)]
    for each in model.graph.initializer:
        if each.data_type == TensorProto.FLOAT and not _outside(each):
            each.CopyFrom(numpy_helper.from_array(_sizes(array_of(each, None), least), each.name))
    read = list(model.graph.node)
    del model.graph.node[:]
    if outer and least:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(least, np.float32), LEAST))
    for name in outer:
        size = f"{name}{SIZE}/any" if least else f"{name}{SIZE}"
        model.graph.node.append(helper.make_node("Abs", [name], [size]))
        if least:
            model.graph.node.append(helper.make_node("Max", [size, LEAST], [f"{name}{SIZE}"]))
    for node in read:
        inputs = [f"{name}{SIZE}" if name in outer else name for name in node.input]
        del node.input[:]
        node.input.extend(inputs)
    model.graph.node.extend(read)
    return model


def _sizes(values: Array, least: float) -> Array:
    """Magnitudes, at least so large."""
    return np.maximum(np.abs(values), np.float32(least))
