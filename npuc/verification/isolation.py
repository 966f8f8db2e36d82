"""The layers of a floating-point program, each alone under onnxruntime on the inputs that the machine computed.

Errors of earlier layers thus hide nothing, and rounding is bounded: a sum of products is off by no more than a few
units in the last place of the sum of their magnitudes, whatever the order of its terms. Source: Higham, Accuracy
and Stability of Numerical Algorithms, section 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from npuc.evidence import network
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.onnx_files.external_data import array_of, without_weights
from npuc.reference import values_of, with_outputs
from npuc.regions.witnesses import standing
from npuc.storage.mapped import Content

UNITS = {"fp16": 2.0**-11, "fp32": 2.0**-24}
"""Half a unit in the last place of 1, by precision."""
LARGEST = {"fp16": 65504.0}
"""Where a precision saturates: a sum that may exceed it is not judged."""
SMALLEST = {"fp16": 2.0**-14}
"""The smallest normal number: smaller values are rounded as coarsely as this one."""
ROUNDINGS = 32
"""Permitted difference in units of rounding: about three times the largest found in any trained network."""
CUT, SIZE, LEAST = "/found", "/size", "/least"
LARGE = 1 << 26
"""Bytes of weights from which they are not all kept in memory at once."""


@frozen
class LayerResult:
    """A layer's result on the machine's own inputs, and the rounding error permitted for each element.

    least: permitted for every element. tolerance: computes the error permitted for each, which is not smaller.
    """

    exact: Array
    least: float
    tolerance: Callable[[], Array]

    def wrong(self, found: Array) -> Array:
        """Which elements rounding does not explain; infinite or undefined values in both are right."""
        with np.errstate(all="ignore"):
            error = np.abs(found.astype(np.float64) - self.exact)
            right = (error <= self.least) | (found == self.exact) | (np.isnan(found) & np.isnan(self.exact))
            return ~right if right.all() else ~(right | (error <= self.tolerance()))


class Isolated:
    """The float network (reference.onnx), cut at every tensor that the machine shows."""

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

        confined: run in a process with limits. few_runs: open faster, run slower.
        """
        model, outer = network(reference)
        written = {name for node in model.graph.node for name in node.output}
        self.names = sorted(written.intersection(shown) - _integers(model))
        self.axes = {node.output[0]: _axis(node) for node in model.graph.node if node.op_type == "Softmax"}
        self.norms = {each.output[0]: each for each in model.graph.node if each.op_type == "InstanceNormalization"}
        self.unit, self.largest = UNITS[precision], LARGEST.get(precision, np.inf)
        self.smallest = SMALLEST.get(precision, 0.0)
        cut, inner = without_weights(_cut(model, shapes, set(self.names)))
        self.cut, self.weights = cut, {**outer, **inner}
        self.options = {"confined": confined, "few_runs": few_runs}
        self.large = few_runs and sum(each.nbytes for each in self.weights.values()) > LARGE
        """Whether to keep only part of the weights in memory: groups of layers run in successive sessions."""
        self.opened: dict[bool, Any] = {}
        """The sessions of a network that is not large, by whether they compute magnitudes."""

    def __call__(self, known: Mapping[str, Array]) -> Iterator[tuple[str, LayerResult]]:
        """Every layer alone. known: the network's inputs and the tensors that the machine shows, of one sample."""
        for names in self._groups():
            exact = self._values(names, known, magnitudes=False)
            sizes = cache(partial(self._values, names, known, magnitudes=True))
            for name in names:
                yield name, self._isolate(name, exact[name], sizes, known)

    def _groups(self) -> Iterator[list[str]]:
        """The layers in one group; of a large network, in groups of one layer or at most LARGE weight bytes."""
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
        """A session that computes some of the layers; with `magnitudes`, the sums of their terms' magnitudes."""
        model = _prune(self.cut, names)
        weights = {each.name: self.weights[each.name] for each in model.graph.initializer if _outside(each)}
        return standing(_with_magnitudes(model, self.smallest) if magnitudes else model, weights, **self.options)

    def _values(self, names: Sequence[str], known: Mapping[str, Array], magnitudes: bool) -> dict[str, Array]:
        """The results of such a session."""
        if not names:
            return {}
        run = self.opened.get(magnitudes) or self._open(names, magnitudes)
        if not self.large:
            self.opened[magnitudes] = run
        feeds = {each.name: known[each.name.removesuffix(CUT)] for each in run.get_inputs()}
        if magnitudes:
            feeds = {name: np.asarray(np.abs(values)) for name, values in feeds.items()}
        return values_of(run, names, feeds)

    def _scale(self, node: Any, rank: int) -> Array:
        """The magnitudes of an InstanceNormalization's factors: (C, 1, ..)."""
        given = {each.name: each for each in self.cut.graph.initializer}
        name = node.input[1]
        values = self.weights[name] if name in self.weights else array_of(given[name], None)
        return np.abs(values).reshape(-1, *(1,) * (rank - 2))

    def _isolate(
        self, name: str, exact: Array, sizes: Callable[[], Mapping[str, Array]], known: Mapping[str, Array]
    ) -> LayerResult:
        """For results that are not sums, the largest value determines the permitted error.

        Softmax divides by a sum of positive terms, each of whose roundings may go the same way in any order.
        InstanceNormalization divides the rounding of a mean by the deviation, which may be near 0.
        """
        terms = exact.shape[self.axes[name]] if name in self.axes else 0
        largest = float(np.abs(exact).max(initial=0, where=np.isfinite(exact)))

        def tolerance() -> Array:
            magnitudes = np.maximum(np.abs(sizes()[name]).astype(np.float64), self.smallest)
            if name in self.norms and (x := known.get(self.norms[name].input[0].removesuffix(CUT))) is not None:
                magnitudes = magnitudes + _of_mean(self.norms[name], x) * self._scale(self.norms[name], x.ndim)
            permitted = self.unit * (ROUNDINGS * (magnitudes + largest) + terms * np.abs(exact))
            return np.where(magnitudes < self.largest, permitted, np.inf)

        return LayerResult(exact, ROUNDINGS * self.unit * largest, tolerance)


def _of_mean(node: Any, x: Array) -> Array:
    """The magnitude of a channel's mean in deviations: (N, C, 1, ..)."""
    wide, axes = x.astype(np.float64), tuple(range(2, x.ndim))
    epsilon = next((each.f for each in node.attribute if each.name == "epsilon"), 1e-5)
    return np.abs(wide).max(axes, keepdims=True) / np.sqrt(wide.var(axes, keepdims=True) + epsilon)


def _axis(node: Any) -> int:
    return next((each.i for each in node.attribute if each.name == "axis"), -1)


def _integers(model: Any) -> set[str]:
    """The tensors derived from QuantizeLinear by movement alone: integers, which are compared exactly."""
    found: set[str] = set()
    for node in model.graph.node:
        moved = node.op_type != "DequantizeLinear" and found.intersection(node.input[:1])
        if node.op_type == "QuantizeLinear" or moved:
            found.update(node.output)
    return found


def _cut(model: Any, shapes: Mapping[str, Any], names: set[str]) -> Any:
    """The model changed to read these tensors as additional inputs, `tensor/found`."""
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


def _prune(model: Any, names: Sequence[str]) -> Any:
    """A copy of the model reduced to what computes these tensors."""
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


def _with_magnitudes(model: Any, least: float) -> Any:
    """The model with its weights replaced by their magnitudes, at least `least`; the model is modified.

    A difference becomes the sum of the magnitudes: what cancels was rounded too.
    For heavy weights, which are stored outside the model, onnxruntime computes the magnitudes at run time.
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
        node.op_type = "Add" if node.op_type == "Sub" else node.op_type
    model.graph.node.extend(read)
    return model


def _sizes(values: Array, least: float) -> Array:
    """The magnitudes, at least `least`."""
    return np.maximum(np.abs(values), np.float32(least))
