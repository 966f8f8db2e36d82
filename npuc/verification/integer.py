"""Verification of integer programs, batch after batch: fp32, the integer network, and the simulator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npuc.frontend.model import ImportedModel
from npuc.frontend.reading import parsed
from npuc.ir import Array
from npuc.program import Program
from npuc.reference import expect_exact_integers, values_of
from npuc.regions.witnesses import standing
from npuc.target import Target, cycles_of
from npuc.verification.bits import EXACT, BitDifferences
from npuc.verification.described import damaged, foreign_evidence
from npuc.verification.layerwise import LayerwiseCheck, Sample
from npuc.verification.metrics import Difference, Tolerance


class IntegerCheck(LayerwiseCheck):
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
        expect_exact_integers(parsed(model, whole=False))
        floats = [entry["float"] for entry in self.bits.tensors.values()]
        floats += [port.name for port in program.inputs]
        super().__init__(model, program, target, chip_model, floats, inside)
        known = {*self.exact.names, *self.bits.inputs}
        edges = {name for name, each in self.bits.tensors.items() if _compared(each, known)}
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
        alone = self._alone(known)
        for name, entry in self.bits.tensors.items():
            scale, zero = _scale(entry), entry.get("zero_point", 0)
            if not _compared(entry, known):
                continue
            value = known[entry["float"]]
            for errors, values in ((self.entire, integer), (self.single, alone)):
                if name in values:
                    errors.setdefault(name, Difference()).add(value, (values[name] - np.float64(zero)) * scale)
        return integer[self.bits.outputs[0]]

    def _alone(self, known: Mapping[str, Array]) -> dict[str, Array]:
        """Each layer's integer result on the exact fp32 values of its inputs, quantised.

        Inputs that are not tensors of the model are computed from the nearest preceding ones that are.
        """
        from npuc.host.step import quantise

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
                feeds[name] = quantise(value, _scale(entry), entry.get("zero_point", 0), self._dtype(name))
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


def _compared(entry: Mapping[str, Any], known: Collection[str]) -> bool:
    """Whether a tensor in graph.json is the form of a tensor of these: not where limits are yet to be applied."""
    return entry["float"] in known and not entry.get("unlimited", False)


def _scale(entry: Mapping[str, Any]) -> Any:
    """The scale of a tensor in graph.json: one number, or one per channel (axis 1) where they were equalised."""
    if not entry.get("factors"):
        return entry["scale"]
    column = np.reshape(entry["factors"], (-1, *(1,) * (len(entry["shape"]) - 2)))
    return (np.float32(entry["scale"]) * column).astype(np.float32)
