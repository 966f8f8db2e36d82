"""Verification of integer programs, batch after batch: fp32, the integer network, and the simulator."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from npuc.errors import ModelError
from npuc.frontend.reading import read_model
from npuc.ir import Array
from npuc.program import Program
from npuc.quantize.scales.constraints import MOVEMENT
from npuc.reference import present, session, with_outputs, without_weights
from npuc.storage.data import Samples
from npuc.storage.records import read
from npuc.target import Counting, Target
from npuc.verification.checking import Outputs, damaged
from npuc.verification.metrics import Difference, Tolerance


@dataclass
class _Tally:
    """What is gathered of the layers over the batches."""

    entire: dict[str, Difference] = field(default_factory=dict[str, Difference])
    single: dict[str, Difference] = field(default_factory=dict[str, Difference])
    differing: dict[str, int] = field(default_factory=dict[str, int])
    strayed: int = 0
    """Elements that the host steps cannot have got from the integer network's values: of outputs, of integers."""


@dataclass(frozen=True)
class _Tensor:
    """An int8 tensor in graph.json."""

    float: str
    scale: float
    shape: tuple[int, ...]
    zero_point: int = 0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class _Layer:
    """A layer in graph.json."""

    op: str
    inputs: tuple[str, ...]
    tensor: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class _Described:
    """graph.json."""

    tensors: Mapping[str, _Tensor]
    layers: tuple[_Layer, ...]


def _described(content: bytes) -> Mapping[str, Any]:
    """graph.json. Raises ArtefactError (E502) where it is not one that npuc wrote."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise damaged("graph.json", "it is not JSON") from None
    checked = read(_Described, found, "graph", "graph.json")
    for layer in checked.layers:
        if layer.tensor not in checked.tensors:
            raise damaged("graph.json", f"it lacks the tensor '{layer.tensor}'")
    for name, tensor in checked.tensors.items():
        if tensor.factors and len(tensor.factors) != (*tensor.shape, 0, 0)[1]:
            raise damaged("graph.json", f"'{name}' has {len(tensor.factors)} factors")
    return found


class IntegerCheck:
    """The three computations, ready to run batch after batch."""

    def __init__(
        self, model: Path, evidence: Mapping[str, bytes], program: Program, target: Target, chip_model: str = "own"
    ) -> None:
        import onnx

        reference, self.described = evidence["reference.onnx"], _described(evidence["graph.json"])
        self.tensors: Mapping[str, Any] = self.described["tensors"]
        self.outputs = [port.name for port in program.outputs]
        self.said, self.tally = Outputs(self.outputs), _Tally()
        self.run, self.dtype = target.runner(program, chip_model), program.precision
        self.chip_model = chip_model
        self.listing = partial(target.listing, program)
        fp32 = read_model(model)
        floats = [entry["float"] for entry in self.tensors.values()]
        self.floats = list(dict.fromkeys([*self.outputs, *present(fp32, floats)]))
        self.fp32 = session(*without_weights(with_outputs(fp32, self.floats)))
        self.inputs = {each.name for each in self.fp32.get_inputs()}
        try:
            self.reference = session(reference)
            named = {name for name, each in self.tensors.items() if each["float"] in {*self.floats, *self.inputs}}
            self.single = session(self._cut(onnx.load_model_from_string(reference), named))
        except ModelError as error:
            raise damaged("reference.onnx", error.problems[0].reason) from None
        self.evidence = reference
        missing = {*self.tensors, *self.outputs} - {each.name for each in self.reference.get_outputs()}
        if missing:
            raise damaged("reference.onnx", f"it lacks the tensor '{min(missing)}'")
        self.single_inputs = {each.name for each in self.single.get_inputs()}

    def _cut(self, model: Any, edges: Collection[str]) -> Any:
        """The integer network, some of whose edges are cut: layers read `tensor/exact` there."""
        from onnx import helper

        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        found: dict[str, Any] = {}
        for node in model.graph.node:
            for position, name in enumerate(node.input):
                if name in edges:
                    node.input[position] = f"{name}{EXACT}"
                    shape = self.tensors[name]["shape"]
                    found[name] = helper.make_tensor_value_info(f"{name}{EXACT}", kind, shape)
        model.graph.input.extend(found.values())
        return model

    def batch(self, samples: Samples) -> None:
        """Runs the batch three ways and adds what differs."""
        simulated: dict[str, Array] = {}
        outputs = self.run(samples.inputs, simulated.__setitem__)
        self.said.label(samples)
        for index, feed in enumerate(samples.feeds()):
            exact = _values(self.fp32, self.floats, feed)
            seen = {name: values[index, ...] for name, values in simulated.items()}
            integer = self._as_rounded(feed, _values(self.reference, self._known, feed), seen)
            self._compare_outputs(exact, integer, {name: values[index, ...] for name, values in outputs.items()})
            self._compare_layers(feed, exact, integer, seen)

    def report(self, tolerance: Tolerance) -> dict[str, Any]:
        """The contract's JSON; status is `mismatch` outside the tolerance or where a bit differs."""
        layers = self.described["layers"]
        bit_exact = not self.tally.strayed and all(self._agrees(layer) for layer in layers)
        said = self.said.report(tolerance, sound=bit_exact)
        rows = [_layer_report(layer, self.tally, self.described) for layer in layers]
        counted = (
            {"chip_model": self.chip_model, "cycles": self.run.cycles} if isinstance(self.run, Counting) else {}
        )
        return {**said, "bit_exact": bit_exact, "layers": rows, **counted}

    def _agrees(self, layer: Mapping[str, Any]) -> bool:
        """Whether every element agrees.

        A movement that no word computes shows in the layers that read it; so does what an instruction computes on
        the way to another layer's result.
        """
        differing = self.tally.differing.get(layer["tensor"])
        if differing is not None or layer["op"] in MOVEMENT:
            return not differing
        readers = [each["tensor"] for each in self.described["layers"] if layer["tensor"] in each["inputs"]]
        computed = (self.computed.get(name, frozenset()) >= {*layer["nodes"]} for name in readers)
        return bool(readers) and all(computed) and all(self.tally.differing.get(name) == 0 for name in readers)

    @cached_property
    def computed(self) -> Mapping[str, frozenset[str]]:
        """The ONNX nodes of the instruction that ends each tensor."""
        return {row["tensor"]: frozenset(row["nodes"]) for row in self.listing() if row["tensor"] is not None}

    @property
    def _known(self) -> list[str]:
        """What is read of the integer network."""
        return list(dict.fromkeys([*self.tensors, *self.outputs]))

    @cached_property
    def brought(self) -> tuple[str, ...]:
        """The integers that come of what the host computes, not of the network's inputs themselves."""
        computed = {layer["tensor"] for layer in self.described["layers"]}
        return tuple(
            name
            for name, entry in self.tensors.items()
            if name not in computed and entry["float"] not in self.inputs
        )

    @cached_property
    def resumed(self) -> Any:
        """The integer network, going on from what the host brought: `tensor/exact`."""
        import onnx

        return session(self._cut(onnx.load_model_from_string(self.evidence), self.brought))

    def _as_rounded(
        self, feed: Mapping[str, Array], integer: dict[str, Array], found: Mapping[str, Array]
    ) -> dict[str, Array]:
        """The integer network's values, given what the host made of its functions in the simulation.

        They are real numbers there, which two libraries give with other last bits: where such a number meets a
        tie of the rounding behind it, a few integers differ by one.
        """
        if all(np.array_equal(found.get(name, integer[name]), integer[name]) for name in self.brought):
            return integer
        given = {f"{name}{EXACT}": found.get(name, integer[name]) for name in self.brought}
        taken = {each.name for each in self.resumed.get_inputs()}
        feeds = {name: value for name, value in {**feed, **given}.items() if name in taken}
        values = _values(self.resumed, self._known, feeds)
        for name in {*self.brought}.intersection(found):
            if _tied(found[name], values[name]):
                values[name] = found[name]
            else:
                self.tally.strayed += int((found[name] != values[name]).sum())
        return values

    def _compare_outputs(
        self, exact: Mapping[str, Array], integer: Mapping[str, Array], found: Mapping[str, Array]
    ) -> None:
        """Against fp32, and against the integer network but for the rounding of the host steps behind it."""
        self.said.add(exact, found, integer[self.outputs[0]])
        for name in self.outputs:
            room = 1e-5 * np.abs(integer[name]).max(initial=0)
            near = np.isclose(found[name], integer[name], rtol=1e-4, atol=room, equal_nan=True)
            self.tally.strayed += int(near.size - near.sum())

    def _compare_layers(
        self,
        feed: Mapping[str, Array],
        exact: Mapping[str, Array],
        integer: Mapping[str, Array],
        simulated: Mapping[str, Array],
    ) -> None:
        tally = self.tally
        known = {**exact, **feed}
        alone = self._alone(known)
        for name, entry in self.tensors.items():
            scale, zero = _scale(entry), entry.get("zero_point", 0)
            if name in simulated:
                wrong = int((simulated[name] != integer[name]).sum())
                tally.differing[name] = tally.differing.get(name, 0) + wrong
            if entry["float"] in known:
                value = known[entry["float"]]
                tally.entire.setdefault(name, Difference()).add(value, (integer[name] - np.float64(zero)) * scale)
                if name in alone:
                    tally.single.setdefault(name, Difference()).add(
                        value, (alone[name] - np.float64(zero)) * scale
                    )

    def _alone(self, known: Mapping[str, Array]) -> dict[str, Array]:
        """Each layer's integer result on the exact fp32 values of its inputs, quantised.

        Inputs that are not the model's are computed, of the nearest before them that are.
        """
        from npuc.host import quantise

        feeds: dict[str, Array] = {}
        for name in self.single_inputs:
            entry = self.tensors.get(name.removesuffix(EXACT))
            if entry is None:
                feeds[name] = known[name]
            else:
                value = known[entry["float"]].reshape(entry["shape"])
                feeds[name] = quantise(value, _scale(entry), entry.get("zero_point", 0), self.dtype)
        return _values(self.single, list(self.tensors), feeds)


TIES = 100
"""At most one of so many elements meets a tie: in int16 a step is some hundred units in the last place."""
LEVELS = 2
"""Of int8 at most so many results: all elements of one come of the same real number."""


def _tied(found: Array, wanted: Array) -> bool:
    """Whether integers differ by rounding alone: a few of them, by one."""
    away = np.abs(found.astype(np.int64) - wanted)
    few = np.count_nonzero(away) <= away.size // TIES or np.unique(wanted[away > 0]).size <= LEVELS
    return bool(few and away.max(initial=0) <= 1)


def _scale(entry: Mapping[str, Any]) -> Any:
    """The scale of a tensor in graph.json: one number, or one per channel (axis 1) where they were equalised."""
    if not entry.get("factors"):
        return entry["scale"]
    column = np.reshape(entry["factors"], (-1, *(1,) * (len(entry["shape"]) - 2)))
    return (np.float32(entry["scale"]) * column).astype(np.float32)


def _values(session: Any, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """These tensors of a session; onnxruntime takes no names for all."""
    return dict(zip(names, session.run(names, feeds), strict=True)) if names else {}


EXACT = "/exact"


def _layer_report(layer: Mapping[str, Any], tally: _Tally, described: Mapping[str, Any]) -> dict[str, Any]:
    name = layer["tensor"]
    entry = described["tensors"][name]
    entire, single = tally.entire.get(name), tally.single.get(name)
    compared = name in tally.differing
    return {
        "name": entry["float"],
        "op": layer["op"],
        "nodes": layer["nodes"],
        "scale": entry["scale"],
        "bit_exact": tally.differing[name] == 0 if compared else None,
        "differing_elements": tally.differing[name] if compared else None,
        **(entire.as_json() if entire else dict.fromkeys(("sqnr_db", "cosine", "max_abs_error", "exact"))),
        "entire": entire.as_json() if entire else None,
        "single": single.as_json() if single else None,
    }
