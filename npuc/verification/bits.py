"""Bit-for-bit comparison of the simulator with the integer network (reference.onnx) under onnxruntime."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from npuc.evidence import foreign_evidence, network, read_graph
from npuc.ir import Array
from npuc.ops.movement import KEPT_INTEGERS
from npuc.program import Program
from npuc.reference import has_integer_products, values_of, with_outputs
from npuc.regions.witnesses import standing
from npuc.storage.mapped import contents_of
from npuc.storage.records import damage_error
from npuc.target import Target


class BitDifferences:
    """Differences between the simulator and the integer network, accumulated over samples.

    program: with its evidence. few_runs: only a sample or two will be added. confined: the evidence may come from
    anyone. Raises ArtefactError (E502) for evidence that npuc did not write.
    """

    def __init__(self, program: Program, target: Target, *, few_runs: bool = False, confined: bool = True) -> None:
        self.evidence = contents_of(program.evidence)["reference.onnx"]
        self.described = read_graph(program)
        self.tensors: Mapping[str, Any] = self.described["tensors"]
        self.inputs = {port.name for port in program.inputs}
        self.outputs = [port.name for port in program.outputs]
        self.confined = confined
        self.target, self.program = target, program
        with foreign_evidence():
            model, self.weights = network(self.evidence)
            few_runs = few_runs and not has_integer_products(model)
            whole = self.evidence if isinstance(self.evidence, bytes) else model
            self.reference = standing(whole, self.weights, few_runs=few_runs, confined=confined)
        kinds = {each.name: each.type for each in self.reference.get_outputs()}
        self.dtypes = {name: kinds.get(name, "").removeprefix("tensor(").rstrip(")") for name in self.tensors}
        """The number format of each integer tensor."""
        missing = {*self.tensors, *self.outputs} - kinds.keys()
        if missing:
            raise damage_error(f"it lacks the tensor '{min(missing)}'", file="reference.onnx")
        self.differing: dict[str, int] = {}
        """Number of differing elements in each tensor that the simulator showed."""
        self.strayed: dict[str, int] = {}
        """Number of elements, in outputs and integer tensors, that do not follow from the reference's values."""

    def add(
        self, feed: Mapping[str, Array], seen: Mapping[str, Array], outputs: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Compares a sample; returns the integer network's values of all tensors and outputs.

        seen: the tensors that the simulator shows.
        """
        with foreign_evidence():
            feed = {name: as_numbers(value) for name, value in feed.items()}
            values = values_of(self.reference, self._known_tensors, feed)
        self._expect_shapes(values)
        with foreign_evidence():
            integer = self._as_rounded(feed, values, seen)
        for name, value in (*seen.items(), *outputs.items()):
            if name in integer and value.shape != integer[name].shape:
                reason = f"'{name}' has the shape {list(integer[name].shape)}, the program's {list(value.shape)}"
                raise damage_error(reason, file="reference.onnx")
        for name in self.outputs:
            self._stray(name, int((~self._near(name, outputs[name], integer[name])).sum()))
        for name in self.tensors.keys() & seen.keys():
            self.differing[name] = self.differing.get(name, 0) + int((seen[name] != integer[name]).sum())
        return integer

    def _expect_shapes(self, values: Mapping[str, Array]) -> None:
        """Raises ArtefactError (E502) if a tensor's shape is not the one in graph.json.

        The shape that onnxruntime infers is no evidence: after pooling with ceil_mode it may be wrong.
        """
        for name, entry in self.tensors.items():
            found = list(values[name].shape)
            if found != entry["shape"]:
                raise damage_error(f"'{name}' has the shape {found}, not {entry['shape']}", file="reference.onnx")

    @property
    def exact(self) -> bool:
        """Whether everything that was compared agrees."""
        return not self.strayed and not any(True for _ in self.faults())

    def faults(self) -> Iterator[Mapping[str, Any]]:
        """The layers, in order, that differ, or whose agreement nothing shows."""
        return (layer for layer in self.described["layers"] if not self._agrees(layer))

    def _agrees(self, layer: Mapping[str, Any]) -> bool:
        """Whether every element agrees.

        A data movement without an instruction of its own is checked through the layers that read it; so is an
        intermediate result within the instructions of other layers, through the first of these that are shown.
        """
        differing = self.differing.get(layer["tensor"])
        if differing is not None or layer["op"] in KEPT_INTEGERS:
            return not differing
        waiting, met = [layer["tensor"]], {layer["tensor"]}
        while waiting:
            name = waiting.pop()
            readers = [each["tensor"] for each in self.described["layers"] if name in each["inputs"]]
            shown = [each for each in readers if each in self.differing]
            completed = (self._computed.get(each, frozenset()) >= {*layer["nodes"]} for each in shown)
            if not readers or not all(completed) or any(self.differing[each] for each in shown):
                return False
            waiting += {*readers} - {*shown} - met
            met.update(readers)
        return True

    @cached_property
    def _computed(self) -> Mapping[str, frozenset[str]]:
        """For each tensor, the ONNX nodes of the instruction that completes it."""
        return self.target.results(self.program)

    @cached_property
    def _known_tensors(self) -> list[str]:
        """The tensors to read from the integer network."""
        return list(dict.fromkeys([*self.tensors, *self.outputs]))

    @cached_property
    def _brought(self) -> tuple[str, ...]:
        """Integer tensors that the host computes from intermediate floats, not from the network's inputs."""
        computed = {layer["tensor"] for layer in self.described["layers"]}
        return tuple(
            name
            for name, entry in self.tensors.items()
            if name not in computed and entry["float"] not in self.inputs
        )

    def cut(self, edges: Collection[str]) -> Any:
        """The integer network without `weights`, with these edges cut: layers read `tensor/exact` there."""
        from onnx import helper

        model, _ = network(self.evidence)
        found: dict[str, Any] = {}
        for node in model.graph.node:
            for position, name in enumerate(node.input):
                if name in edges:
                    node.input[position] = f"{name}{EXACT}"
                    shape = self.tensors[name]["shape"]
                    kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtypes[name]))
                    found[name] = helper.make_tensor_value_info(f"{name}{EXACT}", kind, shape)
        model.graph.input.extend(found.values())
        return model

    @cached_property
    def _resumed(self) -> Any:
        """The integer network, resumed from the tensors that the host computed: `tensor/exact`."""
        return standing(self.cut(self._brought), self.weights, confined=self.confined)

    def _as_rounded(
        self, feed: Mapping[str, Array], integer: dict[str, Array], found: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The integer network's values, given the results of the host's functions in the simulation.

        These results are real numbers, which two libraries may compute with different last bits: near a rounding
        tie, a few integers differ by one.
        """
        if all(np.array_equal(found.get(name, integer[name]), integer[name]) for name in self._brought):
            return integer
        given = {f"{name}{EXACT}": found.get(name, integer[name]) for name in self._brought}
        taken = {each.name for each in self._resumed.get_inputs()}
        feeds = {name: value for name, value in {**feed, **given}.items() if name in taken}
        values = values_of(self._resumed, self._known_tensors, feeds)
        for name in {*self._brought}.intersection(found):
            if _is_tie(found[name], values[name]) or self._tied_but_for_nan(name, feed, found[name], values[name]):
                values[name] = found[name]
            else:
                self._stray(name, int((found[name] != values[name]).sum()))
        return values

    def _tied_but_for_nan(self, name: str, feed: Mapping[str, Array], found: Array, wanted: Array) -> bool:
        """`_is_tie`, allowing for NaN, which the host quantises to 0 and onnxruntime to any integer."""
        model, weights = network(self.evidence)
        origins = {out: node.input[0] for node in model.graph.node for out in node.output if node.input}
        origin = standing(with_outputs(model, [origins[name]]), weights, confined=self.confined)
        (real,) = origin.run([origins[name]], dict(feed))
        if real.dtype.kind != "f" or not np.isnan(real).any():
            return False
        return _is_tie(found, np.where(np.isnan(real), np.int64(self.tensors[name].get("zero_point", 0)), wanted))

    def _near(self, output: str, found: Array, wanted: Array) -> Array:
        """Which output elements agree to library accuracy: relative to the element, to the largest, or absolute.

        Functions with results between -1 and 1 are accurate to a fraction of 1, however small the result.
        """
        tolerance = 1e-5 * np.abs(wanted).max(initial=0)
        near = np.isclose(found, wanted, rtol=1e-4, atol=tolerance, equal_nan=True)
        if not near.all() and output in self._functions:
            near |= np.abs(found - wanted) <= OF_ONE
        return near

    @cached_property
    def _functions(self) -> frozenset[str]:
        """The tensors of the integer network that derive from a host function with results between -1 and 1."""
        found: set[str] = set()
        for node in network(self.evidence)[0].graph.node:
            if node.op_type in BOUNDED or (found.intersection(node.input) and node.op_type != "QuantizeLinear"):
                found.update(node.output)
        return frozenset(found)

    def _stray(self, name: str, count: int) -> None:
        if count:
            self.strayed[name] = self.strayed.get(name, 0) + count


EXACT = "/exact"
BOUNDED = ("Sigmoid", "Tanh", "Erf", "Softmax", "LogSoftmax")
"""Functions that libraries compute to an absolute accuracy: onnxruntime's Sigmoid of -8 has 4 correct digits."""
OF_ONE = 2.0**-20
"""That accuracy, with a margin of a few units in the last place of 1."""
TIES = 100
"""At most one element in this many is near a tie: an int16 step is some hundred units in the last place."""
LEVELS = 2
"""In int8, ties affect at most this many integer values: equal elements come from the same real number."""


def as_numbers(value: Array) -> Array:
    """The values with NaN as 0, as the host quantises it: onnxruntime converts NaN to varying integers."""
    return np.where(np.isnan(value), value.dtype.type(0), value) if value.dtype.kind == "f" else value


def _is_tie(found: Array, wanted: Array) -> bool:
    """Whether integers differ only by rounding: a few of them, by one."""
    away = np.abs(found.astype(np.int64) - wanted)
    few = np.count_nonzero(away) <= away.size // TIES or np.unique(wanted[away > 0]).size <= LEVELS
    return bool(few and away.max(initial=0) <= 1)
