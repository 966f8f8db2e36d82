"""Verification of integer programs, batch after batch: fp32, the integer network, and the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npuc.external_weights import without_weights
from npuc.frontend.binding import with_bound
from npuc.ir import Array
from npuc.program import Program
from npuc.reference import expect_exact_integers, present, session, with_outputs
from npuc.storage.data import Samples
from npuc.target import Counting, Target
from npuc.verification.bits import EXACT, Bits, values_of
from npuc.verification.described import damaged
from npuc.verification.described import evidence as foreign
from npuc.verification.metrics import Difference, Tolerance
from npuc.verification.outputs import Outputs
from npuc.verification.padding import model_of


class IntegerCheck:
    """fp32, integer network and simulator, ready to run batch after batch."""

    def __init__(
        self, model: Path, evidence: Mapping[str, bytes], program: Program, target: Target, chip_model: str = "own"
    ) -> None:
        self.bits = Bits(evidence, program, target)
        self.said = Outputs(self.bits.outputs)
        self.entire: dict[str, Difference] = {}
        self.single: dict[str, Difference] = {}
        self.run, self.chip_model = target.runner(program, chip_model), chip_model
        shapes = {port.name: port.shape for port in program.inputs}
        fp32 = with_bound(model_of(model, shapes), program.bound)
        expect_exact_integers(fp32)
        floats = [entry["float"] for entry in self.bits.tensors.values()]
        floats += [port.name for port in program.inputs]
        self.floats = list(dict.fromkeys([*self.bits.outputs, *present(fp32, floats)]))
        self.fp32 = session(*without_weights(with_outputs(fp32, self.floats)), confined=True)
        known = {*self.floats, *self.bits.inputs}
        edges = {name for name, each in self.bits.tensors.items() if each["float"] in known}
        with foreign():
            self.alone = session(self.bits.cut(edges), self.bits.weights, confined=True)
        self.alone_inputs = {each.name for each in self.alone.get_inputs()}

    def batch(self, samples: Samples) -> None:
        """Runs all three on the batch and accumulates their differences."""
        simulated: dict[str, Array] = {}
        outputs = self.run(samples.inputs, simulated.__setitem__)
        self.compare(samples, samples.inputs, simulated, outputs)

    def compare(
        self,
        samples: Samples,
        fed: Mapping[str, Array],
        simulated: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> None:
        """Accumulates the differences of a simulation. samples: the model's inputs; fed: the program's inputs."""
        self.said.label(samples)
        for index, feed in enumerate(samples.feeds()):
            exact = values_of(self.fp32, self.floats, feed)
            own, seen, found = (
                {name: values[index, ...] for name, values in each.items()} for each in (fed, simulated, outputs)
            )
            integer = self.bits.add(own, seen, found)
            self.said.add(exact, found, integer[self.bits.outputs[0]])
            self._compare_layers({**exact, **feed}, integer)

    def report(self, tolerance: Tolerance) -> dict[str, Any]:
        """The report as JSON; status is `mismatch` if the tolerance is exceeded or a bit differs."""
        bit_exact = self.bits.exact
        said = self.said.report(tolerance, sound=bit_exact)
        rows = [self._layer(layer) for layer in self.bits.described["layers"]]
        counted = (
            {"chip_model": self.chip_model, "cycles": self.run.cycles} if isinstance(self.run, Counting) else {}
        )
        return {**said, "bit_exact": bit_exact, "layers": rows, **counted}

    def _compare_layers(self, known: Mapping[str, Array], integer: Mapping[str, Array]) -> None:
        """Compares the integer network's layers with fp32. known: the values of the model's tensors."""
        alone = self._alone(known)
        for name, entry in self.bits.tensors.items():
            scale, zero = _scale(entry), entry.get("zero_point", 0)
            if entry["float"] not in known:
                continue
            value = known[entry["float"]]
            for errors, values in ((self.entire, integer), (self.single, alone)):
                if name in values:
                    errors.setdefault(name, Difference()).add(value, (values[name] - np.float64(zero)) * scale)

    def _alone(self, known: Mapping[str, Array]) -> dict[str, Array]:
        """Each layer's integer result on the exact fp32 values of its inputs, quantised.

        Inputs that are not tensors of the model are computed from the nearest preceding ones that are.
        """
        from npuc.host import quantise

        feeds: dict[str, Array] = {}
        for name in self.alone_inputs:
            entry = self.bits.tensors.get(name.removesuffix(EXACT))
            source = name if entry is None else entry["float"]
            if source not in known or (entry is not None and known[source].size != prod(entry["shape"])):
                raise damaged("graph.json", f"'{name}' does not stand for the model's '{source}'")
            if entry is None:
                feeds[name] = known[name]
            else:
                value = known[source].reshape(entry["shape"])
                feeds[name] = quantise(value, _scale(entry), entry.get("zero_point", 0), self.bits.dtype)
        with foreign():
            return values_of(self.alone, list(self.bits.tensors), feeds)

    def _layer(self, layer: Mapping[str, Any]) -> dict[str, Any]:
        name = layer["tensor"]
        entry = self.bits.tensors[name]
        entire, single = self.entire.get(name), self.single.get(name)
        differing = self.bits.differing.get(name)
        return {
            "name": entry["float"],
            "op": layer["op"],
            "nodes": layer["nodes"],
            "scale": entry["scale"],
            "bit_exact": None if differing is None else differing == 0,
            "differing_elements": differing,
            **(entire.as_json() if entire else dict.fromkeys(("sqnr_db", "cosine", "max_abs_error", "exact"))),
            "entire": entire.as_json() if entire else None,
            "single": single.as_json() if single else None,
        }


def _scale(entry: Mapping[str, Any]) -> Any:
    """The scale of a tensor in graph.json: one number, or one per channel (axis 1) where they were equalised."""
    if not entry.get("factors"):
        return entry["scale"]
    column = np.reshape(entry["factors"], (-1, *(1,) * (len(entry["shape"]) - 2)))
    return (np.float32(entry["scale"]) * column).astype(np.float32)
