"""Distance of values from exact ones, how often the labelled class is found, and both over a network's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npuc.errors import ModelError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.samples.loading import Samples
from npuc.samples.structured import comparable, leaves
from npuc.target import FLOATING

UNKNOWN: Mapping[str, Any] = dict.fromkeys(("sqnr_db", "exact", "argmax_agreement", "top1"))
"""The scores of a program that was not run."""
CLASSES_FOR_TOP5 = 6
LARGEST = float(np.finfo(np.float32).max)


def _inner(a: Array, b: Array) -> float:
    """The inner product on one thread: the threads of a BLAS cost more than they save here."""
    return float(np.einsum("i,i->", a, b))


def same_type(exact: Array, found: Any) -> bool:
    """Whether a value has the shape and element type of another; half precision may be float32 in npuc."""
    if not isinstance(found, np.ndarray) or found.shape != exact.shape:
        return False
    return found.dtype == exact.dtype or (exact.dtype == np.float16 and found.dtype == np.float32)


@dataclass
class Difference:
    """Running sums of a comparison; `add` takes the exact values and the values under test."""

    signal: float = 0.0
    noise: float = 0.0
    energy: float = 0.0
    product: float = 0.0
    largest: float = 0.0

    def add(self, exact: Array, found: Array) -> None:
        """Includes values of equal size and element order.

        NaN and infinity in both count as 0, so that they hide no error beside them; else as the largest float32.
        """
        a, b = exact.ravel().astype(np.float64), found.ravel().astype(np.float64)
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            both = (np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == b))
            a, b = (np.nan_to_num(each, nan=LARGEST, posinf=LARGEST, neginf=-LARGEST) for each in (a, b))
            a[both] = b[both] = 0
        error = b - a
        self.signal += _inner(a, a)
        self.noise += _inner(error, error)
        self.energy += _inner(b, b)
        self.product += _inner(a, b)
        self.largest = max(self.largest, float(np.abs(error).max(initial=0.0)))

    def compare(self, exact: Any, found: Any) -> None:
        """Includes values of any type.

        Non-numeric values, and values of the wrong shape or element type, count as one element: 1 is expected, and
        found as 1 if both are the same, as 0 if not.
        """
        numeric = isinstance(exact, np.ndarray) and exact.dtype.kind in "fiub"
        if numeric and same_type(exact, found):
            self.add(exact, found)
        elif numeric or not comparable(exact, found):
            self.add(np.ones(1), np.zeros(1))
        else:
            for a, b in zip(leaves(exact), leaves(found), strict=True):
                if a.dtype.kind in "fiub":
                    self.add(a, b)
                else:
                    self.add(np.ones(1), np.full(1, float((a == b).all())))

    def leave_out(self, exact: Array, found: Array) -> None:
        """Takes the errors of these elements, which were added before, as none."""
        a, b = exact.astype(np.float64).ravel(), found.astype(np.float64).ravel()
        self.noise = max(0.0, self.noise - _inner(b - a, b - a))
        self.energy += _inner(a, a) - _inner(b, b)
        self.product += _inner(a, a - b)

    @property
    def sqnr_db(self) -> float | None:
        """Signal to noise in dB; None if there is no noise."""
        if self.noise == 0:
            return None
        return 10 * float(np.log10(max(self.signal, 1e-300) / self.noise))

    @property
    def cosine(self) -> float:
        """Cosine of the angle between both; 1 if both are zero."""
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


@frozen
class Tolerance:
    """What the outputs must reach against fp32."""

    sqnr_db: float = 10.0
    cosine: float = 0.95
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    """For some outputs, the signal to noise in dB required instead; the required cosine follows from it."""
    exact: Mapping[str, float] = field(default_factory=dict[str, float])
    """For some outputs, the largest absolute error that is always admitted: fp32 itself is no more accurate."""

    @classmethod
    def of(cls, precision: str, *, synthetic: bool = False) -> Tolerance:
        """The default of a precision; synthetic data say nothing about the accuracy of integers."""
        if precision in FLOATING:
            return cls(60.0, 0.9999)
        return cls(-np.inf, -1.0) if synthetic else cls()

    @property
    def judges(self) -> bool:
        """Whether the tolerance can reject anything."""
        return self.sqnr_db > -np.inf or self.cosine > -1 or bool(self.limits)

    def of_output(self, name: str) -> tuple[float, float]:
        """Required signal to noise in dB, and required cosine."""
        if name not in self.limits:
            return self.sqnr_db, self.cosine
        sqnr = self.limits[name]
        return sqnr, float(np.sqrt(max(0.0, 1 - 10 ** (-sqnr / 10))))

    def as_json(self, name: str) -> dict[str, Any]:
        """The requirements on an output, as JSON."""
        sqnr, cosine = self.of_output(name)
        return {"name": name, "sqnr_db": sqnr if sqnr > -np.inf else None, "cosine": cosine}

    def admits(self, name: str, difference: Difference) -> bool:
        """Whether the comparison of an output is within the tolerance."""
        if difference.largest <= self.exact.get(name, 0.0):
            return True
        sqnr, (least, cosine) = difference.sqnr_db, self.of_output(name)
        return (sqnr is None or sqnr >= least) and difference.cosine >= cosine


def scores(exact: Mapping[str, Array], found: Mapping[str, Array], labels: Array | None) -> dict[str, Any]:
    """How far the outputs are from the exact ones, (samples, elements) each, and the effect on the task.

    sqnr_db: of the worst output, null if all are exact. argmax_agreement: the share of samples on which both first
    outputs have their largest element in the same place; top1: the share on which it is the label. Both null
    without classes.
    """
    noise: list[float] = []
    for name, values in exact.items():
        apart = Difference()
        apart.add(values, found[name].reshape(values.shape))
        if apart.sqnr_db is not None:
            noise.append(apart.sqnr_db)
    first = next(iter(exact))
    values, wanted = found[first].reshape(exact[first].shape), exact[first]
    return {
        "sqnr_db": min(noise, default=None),
        "exact": not noise,
        "argmax_agreement": agreement(wanted, values) if wanted[0].size > 1 else None,
        "top1": task(values, labels)["top1"],
    }


def agreement(exact: Array, found: Array) -> float:
    """The share of samples whose largest element is the same in both, (samples, elements) each."""
    return float(np.mean(exact.argmax(axis=1) == found.argmax(axis=1)))


def ranks(values: Array, labels: Array) -> Array:
    """The number of classes ranked before the label, by value and then by number; all of them if it is no class.

    values: (samples, classes); labels: (samples,).

    >>> ranks(np.array([[1.0, 3.0, 2.0], [0.0, 0.0, 0.0]]), np.array([2, 7])).tolist()
    [1, 3]
    """
    order: Array = np.argsort(-values, axis=1, kind="stable")
    found: Array = order == labels.reshape(-1, 1)
    return np.where(found.any(axis=1), found.argmax(axis=1), values.shape[1])


def task(values: Array, labels: Array | None) -> dict[str, float | None]:
    """Shares of samples whose label is the first (`top1`) or among the first five classes (`top5`).

    values: (samples, classes). None without labels or with a single class; `top5` also below 6 classes.
    """
    classes = int(values.shape[1])
    if labels is None or classes < 2:
        return {"top1": None, "top5": None}
    before = ranks(values, labels)
    top5 = float(np.mean(before < 5)) if classes >= CLASSES_FOR_TOP5 else None
    return {"top1": float(np.mean(before == 0)), "top5": top5}


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
