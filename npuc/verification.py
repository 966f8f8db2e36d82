"""Verification: the simulated program against onnxruntime, output by output and layer by layer.

Three computations meet: the fp32 model under onnxruntime, the integer network (reference.onnx) under onnxruntime,
and the simulator, which sees words and images only. `bit_exact` compares the last two in every element of every
layer. Errors against fp32 are accumulated ("entire": the network runs quantised up to here) and isolated
("single": this layer alone, on the exact inputs), in the ONNX model's own tensors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npuc.data import Samples
from npuc.driver import BATCH
from npuc.errors import ArtefactError, ModelError
from npuc.frontend.reading import read_model
from npuc.ir import Array
from npuc.program import Program, load_evidence, sha256
from npuc.quantize.ties import MOVEMENT
from npuc.records import read
from npuc.reference import session
from npuc.target import FLOATING, Target


def _inner(a: Array, b: Array) -> float:
    """The inner product on one thread: the threads of a BLAS cost more than they save here."""
    return float(np.einsum("i,i->", a, b))


@dataclass
class Difference:
    """Running sums of a comparison; `add` takes the exact values and the values under test."""

    signal: float = 0.0
    noise: float = 0.0
    energy: float = 0.0
    product: float = 0.0
    largest: float = 0.0

    def add(self, exact: Array, found: Array) -> None:
        """Includes these values, of equal size and element order."""
        a, b = exact.ravel().astype(np.float64), found.ravel().astype(np.float64)
        error = b - a
        self.signal += _inner(a, a)
        self.noise += _inner(error, error)
        self.energy += _inner(b, b)
        self.product += _inner(a, b)
        self.largest = max(self.largest, float(np.abs(error).max(initial=0.0)))

    @property
    def sqnr_db(self) -> float | None:
        """Signal to noise in dB; None where there is no noise."""
        if self.noise == 0:
            return None
        return 10 * float(np.log10(max(self.signal, 1e-300) / self.noise))

    @property
    def cosine(self) -> float:
        """Cosine of the angle between both; 1 where both are zero."""
        if self.signal == 0 or self.energy == 0:
            return 1.0 if self.signal == self.energy else 0.0
        return self.product / float(np.sqrt(self.signal * self.energy))

    def as_json(self) -> dict[str, Any]:
        """The fields of the command line's contract."""
        return {
            "sqnr_db": self.sqnr_db,
            "cosine": self.cosine,
            "max_abs_error": self.largest,
            "exact": self.noise == 0,
        }


@dataclass(frozen=True)
class Tolerance:
    """What the outputs must reach against fp32."""

    sqnr_db: float = 10.0
    cosine: float = 0.95

    @classmethod
    def of(cls, precision: str) -> Tolerance:
        """The usual one of a precision."""
        return cls(60.0, 0.9999) if precision in FLOATING else cls()

    def admits(self, difference: Difference) -> bool:
        """Whether a comparison is within it."""
        sqnr = difference.sqnr_db
        return (sqnr is None or sqnr >= self.sqnr_db) and difference.cosine >= self.cosine


@dataclass
class _Tally:
    """What is gathered over the batches."""

    outputs: dict[str, Difference] = field(default_factory=dict[str, Difference])
    entire: dict[str, Difference] = field(default_factory=dict[str, Difference])
    single: dict[str, Difference] = field(default_factory=dict[str, Difference])
    differing: dict[str, int] = field(default_factory=dict[str, int])
    strayed: int = 0
    """Output elements that the host steps cannot have got from the integer network's values."""
    agreeing: int = 0


def verify(
    model: Path,
    directory: Path,
    program: Program,
    target: Target,
    samples: Samples,
    tolerance: Tolerance,
    *,
    allow_modified: bool = False,
    advance: Callable[[int], None] | None = None,
    chip_model: str = "own",
) -> dict[str, Any]:
    """The verification report of the command line's contract.

    Raises ArtefactError (E501) if the program was compiled from another model, (E502) if its evidence is damaged.
    """
    if program.precision in FLOATING:
        from npuc.verification_float import verify_float

        return verify_float(
            model, directory, program, target, samples, tolerance,
            allow_modified=allow_modified, advance=advance, chip_model=chip_model,
        )  # fmt: skip
    check_model(model, program, allow_modified)
    evidence = load_evidence(directory, program, allow_modified=allow_modified)
    described = _described(evidence["graph.json"])
    check = _Verification(model, evidence["reference.onnx"], described, program, target)
    tally = _Tally()
    for batch in samples.batches(BATCH):
        check.batch(batch.inputs, tally)
        if advance is not None:
            advance(len(batch))
    return _report(tally, described, program, len(samples), tolerance)


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
        raise _damaged("graph.json", "it is not JSON") from None
    checked = read(_Described, found, "graph", "graph.json")
    for layer in checked.layers:
        if layer.tensor not in checked.tensors:
            raise _damaged("graph.json", f"it lacks the tensor '{layer.tensor}'")
    for name, tensor in checked.tensors.items():
        if tensor.factors and len(tensor.factors) != (*tensor.shape, 0, 0)[1]:
            raise _damaged("graph.json", f"'{name}' has {len(tensor.factors)} factors")
    return found


def _damaged(name: str, reason: str) -> ArtefactError:
    return ArtefactError("E502", f"{name} is damaged: {reason}", remedy="compile the model again")


def check_model(model: Path, program: Program, allow_modified: bool) -> None:
    """Raises ArtefactError (E501) unless the program was compiled from exactly this file."""
    try:
        found = sha256(model.read_bytes())
    except OSError:
        return  # reading the model reports it properly
    origin = read(Mapping[str, Any], program.manifest.get("model"), "model")
    if found != origin.get("sha256") and not allow_modified:
        raise ArtefactError(
            "E501",
            f"the program was compiled from another model than '{model}'",
            remedy="compile this model, or compare all the same with --allow-modified",
        )


class _Verification:
    """The three computations, ready to run batch after batch."""

    def __init__(
        self, model: Path, reference: bytes, described: Mapping[str, Any], program: Program, target: Target
    ) -> None:
        import onnx

        self.tensors: Mapping[str, Any] = described["tensors"]
        self.outputs = [port.name for port in program.outputs]
        self.run = target.runner(program)
        fp32 = read_model(model)
        floats = [entry["float"] for entry in self.tensors.values()]
        self.floats = list(dict.fromkeys([*self.outputs, *present(fp32, floats)]))
        self.fp32 = session(with_outputs(fp32, self.floats), optimise=True)
        try:
            self.reference = session(reference)
            self.single = session(_cut(onnx.load_model_from_string(reference), self.tensors))
        except ModelError as error:
            raise _damaged("reference.onnx", error.problems[0].reason) from None
        missing = {*self.tensors, *self.outputs} - {each.name for each in self.reference.get_outputs()}
        if missing:
            raise _damaged("reference.onnx", f"it lacks the tensor '{min(missing)}'")
        self.single_inputs = {each.name for each in self.single.get_inputs()}
        self.inputs = {each.name for each in self.fp32.get_inputs()}

    def batch(self, feeds: Mapping[str, Array], tally: _Tally) -> None:
        """Runs the batch three ways and adds what differs."""
        simulated: dict[str, Array] = {}
        outputs = self.run(feeds, simulated.__setitem__)
        for index in range(len(next(iter(feeds.values())))):
            feed = {name: values[index, ...] for name, values in feeds.items()}
            exact = _values(self.fp32, self.floats, feed)
            integer = _values(self.reference, list(dict.fromkeys([*self.tensors, *self.outputs])), feed)
            self._compare_outputs(exact, integer, {name: values[index] for name, values in outputs.items()}, tally)
            self._compare_layers(feed, exact, integer, {n: v[index] for n, v in simulated.items()}, tally)

    def _compare_outputs(
        self, exact: Mapping[str, Array], integer: Mapping[str, Array], found: Mapping[str, Array], tally: _Tally
    ) -> None:
        """Against fp32, and against the integer network but for the rounding of the host steps behind it."""
        for name in self.outputs:
            tally.outputs.setdefault(name, Difference()).add(exact[name], found[name])
            room = 1e-5 * np.abs(integer[name]).max(initial=0)
            near = np.isclose(found[name], integer[name], rtol=1e-4, atol=room, equal_nan=True)
            tally.strayed += int(near.size - near.sum())
        first = self.outputs[0]
        if exact[first].size:
            tally.agreeing += int(np.argmax(exact[first]) == np.argmax(found[first]))

    def _compare_layers(
        self,
        feed: Mapping[str, Array],
        exact: Mapping[str, Array],
        integer: Mapping[str, Array],
        simulated: Mapping[str, Array],
        tally: _Tally,
    ) -> None:
        known = {**exact, **feed}
        alone = self._alone(known, integer)
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

    def _alone(self, known: Mapping[str, Array], integer: Mapping[str, Array]) -> dict[str, Array]:
        """Each layer's int8 result on the exact fp32 values of its inputs, quantised; where those are known."""
        from npuc.host import quantise

        feeds: dict[str, Array] = {}
        for name in self.single_inputs:
            entry = self.tensors.get(name.removesuffix(EXACT))
            if entry is None:
                feeds[name] = known[name]
            elif entry["float"] in known:
                value = known[entry["float"]].reshape(entry["shape"])
                feeds[name] = quantise(value, _scale(entry), entry.get("zero_point", 0))
            else:
                feeds[name] = integer[name.removesuffix(EXACT)]
        return _values(self.single, list(self.tensors), feeds)


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


def _cut(model: Any, tensors: Mapping[str, Any]) -> Any:
    """The integer network with every edge cut: each layer reads int8 inputs of the model, `tensor/exact`."""
    from onnx import TensorProto, helper

    found: dict[str, Any] = {}
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            if name in tensors:
                node.input[position] = f"{name}{EXACT}"
                shape = tensors[name]["shape"]
                found[name] = helper.make_tensor_value_info(f"{name}{EXACT}", TensorProto.INT8, shape)
    model.graph.input.extend(found.values())
    return model


def present(model: Any, names: Sequence[str]) -> list[str]:
    """Those of the names that a node of the ONNX model writes."""
    written = {name for node in model.graph.node for name in node.output}
    return [name for name in names if name in written]


def with_outputs(model: Any, names: Sequence[str]) -> Any:
    """The model with exactly these outputs; onnxruntime infers their types."""
    from onnx import ValueInfoProto

    known = {each.name: each for each in model.graph.output}
    del model.graph.output[:]
    model.graph.output.extend(known.get(name, ValueInfoProto(name=name)) for name in names)
    return model


def _report(
    tally: _Tally, described: Mapping[str, Any], program: Program, samples: int, tolerance: Tolerance
) -> dict[str, Any]:
    """The contract's JSON; status is `mismatch` outside the tolerance or where a bit differs."""
    bit_exact = not tally.strayed and all(_agrees(layer, tally) for layer in described["layers"])
    outputs: list[dict[str, Any]] = [
        {"name": name, **difference.as_json()} for name, difference in tally.outputs.items()
    ]
    sizes = {port.name: prod(port.shape) for port in program.outputs}
    within = all(map(tolerance.admits, tally.outputs.values()))
    return {
        "status": "ok" if bit_exact and within else "mismatch",
        "samples": samples,
        "bit_exact": bit_exact,
        "argmax_agreement": tally.agreeing / samples if sizes[outputs[0]["name"]] > 1 else None,
        "outputs": outputs,
        "layers": [_layer_report(layer, tally, described) for layer in described["layers"]],
    }


def _agrees(layer: Mapping[str, Any], tally: _Tally) -> bool:
    """Whether every element agrees; a movement that no word computes shows in the layers that read it."""
    differing = tally.differing.get(layer["tensor"])
    return differing == 0 if differing is not None else layer["op"] in MOVEMENT


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
