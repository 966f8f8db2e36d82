"""Results on a network's outputs, accumulated during verification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npuc.ir import Array
from npuc.samples.loading import Samples
from npuc.verification.metrics import Difference, Tolerance, agreement, task


class Outputs:
    """Differences of the network's outputs from fp32, and their effect on the task."""

    def __init__(self, names: Sequence[str]) -> None:
        self.differences = {name: Difference() for name in names}
        self.first = names[0]
        self.values: dict[str, list[Array]] = {"fp32": [], "integer": [], "simulator": []}
        """The first output of every sample, by computation."""
        self.labels: list[Array] = []
        self.undefined = dict.fromkeys(names, 0)
        """Samples for which onnxruntime's own output has NaN, by output."""

    def add(self, exact: Mapping[str, Array], found: Mapping[str, Array], integer: Array | None) -> None:
        """Adds the outputs of a sample: in fp32, of the simulator, and the first one of the integer network."""
        for name, difference in self.differences.items():
            difference.compare(exact[name], found[name])
            self.undefined[name] += _has_nan(exact[name])
        values = {"fp32": exact[self.first], "simulator": found[self.first], "integer": integer}
        for name, each in values.items():
            if isinstance(each, np.ndarray) and each.dtype.kind in "fiub":
                self.values[name].append(each.ravel())

    def label(self, samples: Samples) -> None:
        """Sets the labels of the samples that were added."""
        if samples.labels is not None:
            self.labels.append(samples.labels)

    def report(self, tolerance: Tolerance, *, sound: bool) -> dict[str, Any]:
        """Status, agreement, outputs and task. sound: whether no other check failed."""
        classes = self._classes()
        stacked = {
            name: np.stack(values) if values and classes > 1 else None for name, values in self.values.items()
        }
        exact, found = stacked["fp32"], stacked["simulator"]
        labels = np.concatenate(self.labels) if self.labels else None
        counted = {name: None if each is None else task(each, labels) for name, each in stacked.items()}
        within = all(tolerance.admits(name, each) for name, each in self.differences.items())
        return {
            "status": "ok" if sound and within else "mismatch",
            "argmax_agreement": None if exact is None or found is None else agreement(exact, found),
            "task": None if labels is None or classes < 2 else counted,
            "outputs": [
                {"name": name, **each.as_json(), "nan_samples": self.undefined[name]}
                for name, each in self.differences.items()
            ],
            "criterion": [tolerance.as_json(name) for name in self.differences] if tolerance.judges else None,
        }

    def _classes(self) -> int:
        """The number of elements of the first output; 0 if it is not a numeric tensor of constant size."""
        sizes = {each.size for values in self.values.values() for each in values}
        counts = {len(values) for values in self.values.values() if values}
        return sizes.pop() if len(sizes) == len(counts) == 1 and self.values["fp32"] else 0


def _has_nan(value: object) -> bool:
    """Whether a tensor of floats has NaN; sequences and absent values do not count."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and bool(np.isnan(value).any())
