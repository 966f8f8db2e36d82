"""Results on a network's outputs, accumulated during verification."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from npuc.errors import ModelError
from npuc.ir import Array
from npuc.samples.loading import Samples
from npuc.verification.metrics import Difference, Tolerance, agreement, task

Values = Mapping[str, Array]
Jumping = Callable[[Values, Values, Values], Mapping[str, Array]]
"""The elements of exact and found outputs that jump, as masks, from the feed and both."""
NOISE = 60.0
"""Signal to noise in dB that no criterion of a floating-point program exceeds."""
SAMPLES = 32
"""The most samples whose errors are examined."""


class Outputs:
    """Differences of the network's outputs from fp32, and their effect on the task."""

    def __init__(self, names: Sequence[str], jumping: Jumping | None = None) -> None:
        """jumping: what finds the elements that jump, for programs that are judged to the last bits."""
        self.differences = {name: Difference() for name in names}
        self.first = names[0]
        self.values: dict[str, list[Array]] = {"fp32": [], "integer": [], "simulator": []}
        """The first output of every sample, by computation."""
        self.labels: list[Array] = []
        self.undefined = dict.fromkeys(names, 0)
        """Samples for which onnxruntime's own output has NaN, by output."""
        self.jumping = jumping
        self.apart: list[tuple[Values, Values, Values]] = []
        """Feed, exact and found outputs of samples with larger errors than rounding leaves."""
        self.jumps = dict.fromkeys(names, 0)
        """Elements that jumped, by output."""

    def add(self, feed: Values, exact: Values, found: Values, integer: Array | None) -> None:
        """Adds the outputs of a sample: in fp32, of the simulator, and the first one of the integer network."""
        if (
            self.jumping is not None
            and len(self.apart) < SAMPLES
            and any(_is_apart(exact[name], found[name]) for name in self.differences)
        ):
            self.apart.append((feed, exact, found))
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
        within = not self.wrong(tolerance)
        return {
            "status": "ok" if sound and within else "mismatch",
            "argmax_agreement": None if exact is None or found is None else agreement(exact, found),
            "task": None if labels is None or classes < 2 else counted,
            "outputs": [
                {"name": name, **each.as_json(), "nan_samples": self.undefined[name], "jumps": self.jumps[name]}
                for name, each in self.differences.items()
            ],
            "criterion": [tolerance.as_json(name) for name in self.differences] if tolerance.judges else None,
        }

    def wrong(self, tolerance: Tolerance) -> set[str]:
        """The outputs beyond the tolerance, elements that jump left out where they are."""
        wrong = {name for name, each in self.differences.items() if not tolerance.admits(name, each)}
        if not wrong or self.jumping is None:
            return wrong
        judged = {name: replace(self.differences[name]) for name in wrong}
        self.jumps = dict.fromkeys(self.jumps, 0)
        for feed, exact, found in self.apart:
            names = [name for name in judged if _is_apart(exact[name], found[name])]
            with suppress(ModelError):  # the model does not run with its results moved: all errors count
                masks = self.jumping(feed, *({name: each[name] for name in names} for each in (exact, found)))
                for name, mask in masks.items():
                    judged[name].leave_out(exact[name][mask], found[name][mask])
                    self.jumps[name] += int(mask.sum())
        return {name for name, each in judged.items() if not tolerance.admits(name, each)}

    def _classes(self) -> int:
        """The number of elements of the first output; 0 if it is not a numeric tensor of constant size."""
        sizes = {each.size for values in self.values.values() for each in values}
        counts = {len(values) for values in self.values.values() if values}
        return sizes.pop() if len(sizes) == len(counts) == 1 and self.values["fp32"] else 0


def _is_apart(exact: Any, found: Any) -> bool:
    """Whether tensors of finite numbers differ by more than NOISE."""
    if not all(isinstance(each, np.ndarray) and each.dtype.kind in "fiub" for each in (exact, found)):
        return False
    if exact.shape != found.shape or not (np.isfinite(exact).all() and np.isfinite(found).all()):
        return False
    apart = Difference()
    apart.add(exact, found)
    return apart.sqnr_db is not None and apart.sqnr_db < NOISE


def _has_nan(value: object) -> bool:
    """Whether a tensor of floats has NaN; sequences and absent values do not count."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and bool(np.isnan(value).any())
