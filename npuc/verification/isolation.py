"""The layers of a floating-point program, each alone: what onnxruntime makes of the inputs that the machine has.

Nothing is hidden behind errors of earlier layers, and rounding is bounded: a sum of products is off by no more
than a few units in the last place of the sum of their magnitudes, whatever the order of its terms. Source:
Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npuc.external_weights import without_weights
from npuc.frontend.external_data import array_of
from npuc.ir import Array
from npuc.reference import session, with_outputs
from npuc.verification.described import network

UNITS = {"fp16": 2.0**-11, "fp32": 2.0**-24}
"""Half a unit in the last place of 1, by precision."""
LARGEST = {"fp16": 65504.0}
"""Where a precision saturates: beyond, nothing is known of a sum."""
SMALLEST = {"fp16": 2.0**-14}
"""Below, a precision rounds values as if they were so large."""
ROUNDINGS = 32
"""How many of them rounding may take a result from another: about three times the most of any trained network."""
CUT = "/found"


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
        reference: bytes,
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
        model = network(reference)
        written = {name for node in model.graph.node for name in node.output}
        self.names = sorted(written.intersection(shown) - _integers(model))
        self.unit, self.largest = UNITS[precision], LARGEST.get(precision, np.inf)
        cut, weights = without_weights(_cut(model, shapes, set(self.names)))
        self.layers = session(with_outputs(cut, self.names), weights, confined=confined, few_runs=few_runs)
        self.smallest = SMALLEST.get(precision, 0.0)
        sizes = {name: _sizes(each, self.smallest) for name, each in weights.items()}
        self.magnitudes = session(_absolute(cut, self.smallest), sizes, confined=confined, few_runs=few_runs)
        self.inputs = [each.name for each in self.layers.get_inputs()]

    def __call__(self, known: Mapping[str, Array]) -> dict[str, Alone]:
        """Every layer alone. known: the network's inputs and what the machine shows, for one sample."""
        if not self.names:
            return {}
        feeds = {name: known[name.removesuffix(CUT)] for name in self.inputs}
        exact = self.layers.run(self.names, feeds)
        sizes = self.magnitudes.run(
            self.names, {name: np.asarray(np.abs(values)) for name, values in feeds.items()}
        )
        return {
            name: Alone(values, self._room(values, size))
            for name, values, size in zip(self.names, exact, sizes, strict=True)
        }

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


def _absolute(model: Any, least: float) -> Any:
    """The model with the magnitudes of the weights that it holds, which are at least so large."""
    from onnx import TensorProto, numpy_helper

    for each in model.graph.initializer:
        if each.data_type == TensorProto.FLOAT and each.data_location != TensorProto.EXTERNAL:
            each.CopyFrom(numpy_helper.from_array(_sizes(array_of(each, None), least), each.name))
    return model


def _sizes(values: Array, least: float) -> Array:
    """Magnitudes, at least so large."""
    return np.maximum(np.abs(values), np.float32(least))
