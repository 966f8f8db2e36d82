"""CTC: greedy decoding, and the character error rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npuc.errors import DataError
from npuc.flag import OWN_METRIC
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.verification.judging.metric import FP32, Outputs, Truth, estimate, finite, interval, ratio

SURE = 1e-2
"""How far from 1 the probabilities of a step may sum."""


@frozen
class Read:
    """The result of greedy decoding for one sample."""

    characters: Array
    """(characters,) int64 classes."""
    probable: bool
    """Whether every step consists of probabilities, or of their logarithms."""


@frozen
class Sequences:
    """The character error rate of one output."""

    output: str
    steps: int
    classes: int
    layout: str = "rows"
    """Axes of the output: rows, (steps, classes), or columns, (classes, steps)."""
    blank: str = "first"
    """Which class is the blank: first or last."""
    certain: bool = True
    """Whether user or labels establish that these are sequences; otherwise fp32's probabilities must show it."""
    name: str = "ctc"

    def digest(self, outputs: Outputs, exact: Outputs, truth: Truth) -> Read:  # noqa: ARG002
        """The result of greedy decoding."""
        values = finite(outputs[self.output], self.output)
        shape = (self.steps, self.classes)
        steps = values.reshape(shape) if self.layout == "rows" else values.reshape(shape[::-1]).T
        return Read(greedy(steps, self._blank), _probable(steps))

    @property
    def _blank(self) -> int:
        return 0 if self.blank == "first" else self.classes - 1

    def report(self, digests: Mapping[str, Sequence[Any]], truths: Array | None) -> dict[str, Any]:
        """Errors per character over all samples; intervals by the bootstrap over samples."""
        if not self.certain and not all(each.probable for each in digests[FP32]):
            reason = f"the outputs may be {self.steps} steps of {self.classes} classes, but are no probabilities"
            remedy = "say what they are: --metric ctc, detections or regression"
            raise DataError("E402", reason, tensor=self.output, remedy=remedy)
        read = {name: [each.characters for each in found] for name, found in digests.items()}
        wanted = read[FP32] if truths is None else self._labels(truths)
        lengths = np.array([len(each) for each in wanted], np.float64)
        if not lengths.sum():
            where = "fp32 reads no character in any sample" if truths is None else "the labels have no characters"
            raise DataError(
                "E402", where, tensor=self.output, remedy=f"the first class must be the blank; else {OWN_METRIC}"
            )
        errors = {name: _errors(found, wanted) for name, found in read.items()}
        return {
            "classes": self.classes,
            "characters": int(lengths.sum()),
            "decoding": {"output": self.output, "steps": self.steps, "layout": self.layout, "blank": self.blank},
            **{
                name: {**_row(errors[name], errors[FP32], lengths), "agreement": _alike(read[name], read[FP32])}
                for name in read
            },
        }

    def _labels(self, truths: Array) -> list[Array]:
        """The characters of every sample: the classes before the first negative one. Raises DataError (E402)."""
        if truths.ndim != 2 or truths.dtype.kind not in "iuf" or (truths != np.floor(truths)).any():
            limit = "[samples, characters] of class numbers, -1 behind the last"
            raise DataError("E402", f"the labels are {truths.dtype} {list(truths.shape)}", tensor="y", limit=limit)
        if truths.size and (truths.max() >= self.classes or (truths == self._blank).any()):
            limit = f"0..{self.classes - 1}, without the blank {self._blank}"
            raise DataError("E402", "a label is no character of the output", tensor="y", limit=limit)
        ends = [int(np.argmax(row < 0)) if (row < 0).any() else len(row) for row in truths]
        return [row[:end].astype(np.int64) for row, end in zip(truths, ends, strict=True)]


def _probable(steps: Array) -> bool:
    """Whether each row sums to 1, or the exponentials of it do."""
    return any(
        bool((each >= 0).all() and (np.abs(each.sum(axis=1) - 1) < SURE).all())
        for each in (steps, np.exp(np.minimum(steps, 1)))
    )


def greedy(steps: Array, blank: int) -> Array:
    """The most probable class of every step, repeats merged and blanks removed. Source: Graves et al., 2006.

    steps: (steps, classes).

    >>> best = [0, 2, 2, 0, 2, 1, 1, 0]
    >>> greedy(np.eye(3)[best], blank=0).tolist()
    [2, 2, 1]
    """
    best: Array = steps.argmax(axis=1)
    starts = np.concatenate([[True], best[1:] != best[:-1]])
    return best[starts & (best != blank)].astype(np.int64)


def edit_distance(found: Array, wanted: Array) -> int:
    """The least number of characters to insert, delete or replace. Source: Levenshtein, 1966.

    >>> text = lambda word: np.frombuffer(word.encode(), np.uint8)
    >>> edit_distance(text("kitten"), text("sitting"))
    3
    """
    columns = np.arange(len(wanted) + 1)
    row = columns.copy()
    for each in found:
        changed = np.minimum(row[1:] + 1, row[:-1] + (wanted != each))
        # insertions: the least of the row so far, plus one for each column since
        row = np.minimum.accumulate(np.concatenate([[row[0] + 1], changed]) - columns) + columns
    return int(row[-1])


def _errors(found: Sequence[Array], wanted: Sequence[Array]) -> Array:
    return np.array([edit_distance(*each) for each in zip(found, wanted, strict=True)], np.float64)


def _alike(found: Sequence[Array], exact: Sequence[Array]) -> float:
    return float(np.mean([np.array_equal(*each) for each in zip(found, exact, strict=True)]))


def _row(errors: Array, exact: Array, lengths: Array) -> dict[str, Any]:
    """The figures of one computation; errors, exact, lengths: (samples,)."""

    def of(weights: Array) -> Array:
        return ratio(weights @ np.stack([errors, errors - exact], axis=1), (weights @ lengths)[:, None])

    (cer, own), (difference, apart) = estimate(of, len(errors))
    right = int((errors == 0).sum())
    return {
        "cer": cer,
        "interval": own and list(own),
        "right": right / len(errors),
        "right_interval": list(interval(right, len(errors))),
        "difference": difference,
        "difference_interval": apart and list(apart),
    }
