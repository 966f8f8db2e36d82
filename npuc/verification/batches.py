"""Verification of programs, batch after batch: the model under onnxruntime and the simulator run side by side.

A floating-point program has no integer reference, so `bit_exact` is null. Its layers are compared where the
target's simulator shows their results and the ONNX model has a tensor of that name ("entire"). "single" is a layer
alone on the inputs that the machine computed; a layer whose inputs are not shown is taken together with those
before it. An integer program is compared with fp32 and, bit for bit, with its integer network, which can also run
in its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npuc.evidence import DescribedLayer, foreign_evidence, network, read_graph
from npuc.frontend.model import ImportedModel
from npuc.frontend.reading import parse_model
from npuc.frozen import frozen
from npuc.host.step import quantise
from npuc.ir import Array
from npuc.program import Program
from npuc.reference import expect_exact_integers, session, values_of
from npuc.regions.artefact import is_composite
from npuc.regions.running import CompositeRunner, sample_by_sample
from npuc.regions.witnesses import standing
from npuc.samples.loading import Samples
from npuc.storage.mapped import contents_of
from npuc.storage.records import damage_error, read
from npuc.target import FLOATING, Observer, Runner, Target, cycles_of
from npuc.verification.bits import EXACT, BitDifferences, as_numbers
from npuc.verification.exact import Exact
from npuc.verification.isolation import Isolated, LayerResult
from npuc.verification.metrics import Difference, Outputs, Tolerance

Values = Mapping[str, Array]
FIELDS = ("sqnr_db", "cosine", "max_abs_error", "exact")
"""The figures of a layer; null if it was not compared."""


@frozen
class Sample:
    """One sample: the model's inputs and its tensors in fp32; the program's inputs, inner tensors and outputs."""

    feed: Values
    exact: Values
    fed: Values
    seen: Values
    """As far as the simulator shows them."""
    outputs: Values


class _LayerwiseCheck(ABC):
    """The model and the simulator, ready to run; the differences of layers, by tensor.

    entire: the network runs as on the machine up to here; single: this layer alone, on exact inputs.
    """

    def __init__(
        self,
        model: Path,
        program: Program,
        target: Target,
        chip_model: str,
        tensors: Sequence[str],
        inside: ImportedModel | None,
    ) -> None:
        """tensors, inside: as those of `Exact`."""
        self.run, self.chip_model = target.runner(program, chip_model), chip_model
        self.exact = Exact(model, program, tensors, inside)
        self.said = Outputs([port.name for port in program.outputs], self.exact.jumping(program.precision))
        self.entire: dict[str, Difference] = {}
        self.single: dict[str, Difference] = {}

    def batch(self, samples: Samples) -> None:
        """Runs all computations on the batch and accumulates their differences."""
        seen: dict[str, Array] = {}
        outputs = self.run(samples.inputs, seen.__setitem__)
        self.compare(samples, samples.inputs, seen, outputs)

    def compare(self, samples: Samples, fed: Values, seen: Values, outputs: Values) -> None:
        """Accumulates the differences of a simulation; as the fields of `Sample`, (samples, ...) each."""
        self.said.label(samples)
        for index, feed in enumerate(samples.feeds()):
            parts = ({name: values[index, ...] for name, values in each.items()} for each in (fed, seen, outputs))
            sample = Sample(feed, self.exact(feed), *parts)
            self.said.add(feed, sample.exact, sample.outputs, self._compare(sample))

    @abstractmethod
    def _compare(self, sample: Sample) -> Array | None:
        """Compares the layers; returns the integer network's first output, if there is such a network."""

    def figures(self, tensor: str) -> dict[str, Any]:
        """The differences of a layer as JSON; null where it was not compared."""
        entire, single = (
            None if each is None else each.as_json() for each in (self.entire.get(tensor), self.single.get(tensor))
        )
        return {**(entire or dict.fromkeys(FIELDS)), "entire": entire, "single": single}


class FloatingLayers:
    """The layers of a program, each alone on the inputs that the machine computed.

    program: with its evidence. confined: whether that may come from someone else. few_runs: few samples will be
    added.
    Raises ArtefactError (E502) if npuc did not write the evidence.
    """

    def __init__(self, program: Program, *, confined: bool = True, few_runs: bool = False) -> None:
        found = read_graph(program)
        self.layers = read(tuple[DescribedLayer, ...], found["layers"], "graph.layers", "graph.json")
        self.reference, self.precision = contents_of(program.evidence)["reference.onnx"], program.precision
        self.shapes = {name: tensor["shape"] for name, tensor in found["tensors"].items()}
        self.isolated: Isolated | None = None
        self.options = {"confined": confined, "few_runs": few_runs}

    def __call__(self, feed: Mapping[str, Array], found: Mapping[str, Array]) -> Iterator[tuple[str, LayerResult]]:
        """The expected result of each layer for a sample. found: the tensors that the simulator shows."""
        with foreign_evidence():
            if self.isolated is None:
                shown = self.shapes.keys() & found.keys()
                self.isolated = Isolated(self.reference, self.shapes, shown, self.precision, **self.options)
            yield from self.isolated({**feed, **found})

    def wrong(self, feed: Mapping[str, Array], found: Mapping[str, Array]) -> DescribedLayer | None:
        """The first layer of a sample whose error rounding does not explain."""
        wrong = {name for name, each in self(feed, found) if each.wrong(found[name]).any()}
        return next((layer for layer in self.layers if layer.tensor in wrong), None)


class FloatCheck(_LayerwiseCheck):
    """onnxruntime and the simulator, ready to run batch after batch."""

    def __init__(
        self, model: Path, program: Program, target: Target, chip_model: str, inside: ImportedModel | None = None
    ) -> None:
        self.alone = FloatingLayers(program)
        self.layers = self.alone.layers
        tensors = [layer.tensor for layer in self.layers]
        super().__init__(model, program, target, chip_model, tensors, inside)

    def report(self, tolerance: Tolerance) -> dict[str, Any]:
        """The report as JSON; status is `mismatch` if the tolerance is exceeded."""
        return {
            **self.said.report(tolerance, sound=True),
            "bit_exact": None,
            "layers": [self._layer(layer) for layer in self.layers],
            "chip_model": self.chip_model,
            "cycles": cycles_of(self.run),
        }

    def _compare(self, sample: Sample) -> None:
        exact, shown = sample.exact, {**sample.seen, **sample.outputs}
        for layer in self.layers:
            name = layer.tensor
            if name in shown and name in exact:
                if exact[name].size != shown[name].size:
                    raise damage_error(f"its shape {list(shown[name].shape)} is not the model's", tensor=name)
                self.entire.setdefault(name, Difference()).add(exact[name], shown[name])
        for name, alone in self.alone(sample.fed, shown):
            self.single.setdefault(name, Difference()).add(alone.exact, shown[name])

    def _layer(self, layer: DescribedLayer) -> dict[str, Any]:
        row = {"name": layer.tensor, "op": layer.op, "nodes": layer.nodes, "bit_exact": None}
        return {**row, **self.figures(layer.tensor)}


class IntegerCheck(_LayerwiseCheck):
    """fp32, integer network and simulator, ready to run batch after batch."""

    def __init__(
        self,
        model: Path,
        program: Program,
        target: Target,
        chip_model: str = "own",
        inside: ImportedModel | None = None,
    ) -> None:
        self.bits = BitDifferences(program, target)
        expect_exact_integers(parse_model(model, whole=False))
        floats = [entry["float"] for entry in self.bits.tensors.values()]
        floats += [port.name for port in program.inputs]
        super().__init__(model, program, target, chip_model, floats, inside)
        known = {*self.exact.names, *self.bits.inputs}
        edges = {name for name, each in self.bits.tensors.items() if _is_compared(each, known)}
        with foreign_evidence():
            self.alone = standing(self.bits.cut(edges), self.bits.weights)
        self.alone_inputs = {each.name for each in self.alone.get_inputs()}

    def report(self, tolerance: Tolerance) -> dict[str, Any]:
        """The report as JSON; status is `mismatch` if the tolerance is exceeded or a bit differs."""
        bit_exact = self.bits.exact
        said = self.said.report(tolerance, sound=bit_exact)
        rows = [self._layer(layer) for layer in self.bits.described["layers"]]
        counted = {"chip_model": self.chip_model, "cycles": cycles_of(self.run)}
        return {**said, "bit_exact": bit_exact, "layers": rows, **counted}

    def _compare(self, sample: Sample) -> Array:
        integer = self.bits.add(sample.fed, sample.seen, sample.outputs)
        known = {**sample.exact, **sample.feed}
        alone = self._run_alone(known)
        for name, entry in self.bits.tensors.items():
            scale, zero = tensor_scale(entry), entry.get("zero_point", 0)
            if not _is_compared(entry, known):
                continue
            value = known[entry["float"]]
            for errors, values in ((self.entire, integer), (self.single, alone)):
                if name in values:
                    errors.setdefault(name, Difference()).add(value, (values[name] - np.float64(zero)) * scale)
        return integer[self.bits.outputs[0]]

    def _run_alone(self, known: Mapping[str, Array]) -> dict[str, Array]:
        """Each layer's integer result on the exact fp32 values of its inputs, quantised.

        Inputs that are not tensors of the model are computed from the nearest preceding ones that are.
        """
        feeds: dict[str, Array] = {}
        for name in self.alone_inputs:
            entry = self.bits.tensors.get(name.removesuffix(EXACT))
            source = name if entry is None else entry["float"]
            if source not in known or (entry is not None and known[source].size != prod(entry["shape"])):
                raise damage_error(f"'{name}' does not stand for the model's '{source}'", file="graph.json")
            if entry is None:
                feeds[name] = known[name]
            else:
                value = known[source].reshape(entry["shape"])
                feeds[name] = quantise(value, tensor_scale(entry), entry.get("zero_point", 0), self._dtype(name))
        with foreign_evidence():
            return values_of(self.alone, list(self.bits.tensors), feeds)

    def _dtype(self, name: str) -> str:
        return self.bits.dtypes[name.removesuffix(EXACT)]

    def _layer(self, layer: Mapping[str, Any]) -> dict[str, Any]:
        name = layer["tensor"]
        entry = self.bits.tensors[name]
        differing = self.bits.differing.get(name)
        return {
            "name": entry["float"],
            "tensor": name,
            "op": layer["op"],
            "nodes": layer["nodes"],
            "scale": entry["scale"],
            "bit_exact": None if differing is None else differing == 0,
            "differing_elements": differing,
            **self.figures(name),
        }


def _is_compared(entry: Mapping[str, Any], known: Collection[str]) -> bool:
    """Whether a tensor in graph.json is the form of a tensor of these: not where limits are yet to be applied."""
    return entry["float"] in known and not entry.get("unlimited", False)


def tensor_scale(entry: Mapping[str, Any]) -> Any:
    """The scale of a tensor in graph.json: one number, or one per channel (axis 1) where they were equalised."""
    if not entry.get("factors"):
        return entry["scale"]
    column = np.reshape(entry["factors"], (-1, *(1,) * (len(entry["shape"]) - 2)))
    return (np.float32(entry["scale"]) * column).astype(np.float32)


def has_integer_network(program: Program) -> bool:
    """Whether the program computes in integers, bit for bit as a network in ONNX."""
    return program.precision not in FLOATING


def integer_runner(program: Program, tensors: Sequence[str] = ()) -> Runner:
    """A runner of the integer network; of each part between host regions, which run as they do beside words.

    program: with its evidence, which may come from anyone. tensors: results in place of the outputs, of one part.
    Raises ArtefactError (E502) for evidence that npuc did not write.
    """
    if is_composite(program):
        return CompositeRunner(program, integer_runner)
    with foreign_evidence():
        evidence = contents_of(program.evidence)["reference.onnx"]
        model, weights = network(evidence)
        opened = session(evidence if isinstance(evidence, bytes) else model, weights, confined=True)
    run = sample_by_sample(opened, tensors or [port.name for port in program.outputs])

    def numbers(feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        with foreign_evidence():
            return run({name: as_numbers(values) for name, values in feeds.items()}, observe)

    return numbers
