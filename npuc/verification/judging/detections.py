"""Detectors: mean average precision, recall of fp32's detections, and box errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from npuc.errors import DataError
from npuc.flag import OWN_METRIC
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.verification.judging.boxes import (
    SURE,
    Boxes,
    DecodedBoxes,
    Decoding,
    average_precision,
    decode_boxes,
    match_boxes,
)
from npuc.verification.judging.metric import FP32, Outputs, Truth, estimate, ratio

UNIT = 2.0
"""Coordinates that are all below this are fractions of the image: in pixels the boxes would be tiny."""
NAMES = ("map50", "difference", "recall", "box_error_px")
"""The figures of each computation."""
INSIDE = 0.9
"""The least share of fp32's boxes that must touch the image if the boxes are decoded correctly."""


@frozen
class Detections:
    """mAP at 0.5 against labels or fp32's detections; recall and error in pixels against fp32's."""

    decoding: Decoding
    image: tuple[int, int] | None
    """Height and width of the input image; None if no input gives them."""
    certain: bool = True
    """Whether the user or two outputs establish that these are boxes; otherwise fp32's must be in pixels."""
    name: str = "detections"

    def digest(self, outputs: Outputs, exact: Outputs, truth: Truth) -> DecodedBoxes:  # noqa: ARG002
        """The detections of the sample, in the model's own units."""
        return decode_boxes(outputs, self.decoding)

    def report(self, digests: Mapping[str, Sequence[Any]], truths: Array | None) -> dict[str, Any]:
        """The figures by computation; intervals by the bootstrap over samples."""
        exact: Sequence[DecodedBoxes] = digests[FP32]
        _expect_sound(exact, self.decoding)
        unit = in_units([each.boxes for each in exact])
        if unit and not self.certain:
            reason = f"the output may be {self.decoding.layout} of boxes, but has none in pixels of the image"
            raise _wrong(self.decoding.boxes, reason, "say what it is: --metric detections, ctc or another")
        self._expect_inside([each.boxes for each in exact], unit=unit)
        found = {name: [self._pixels(each.boxes, unit) for each in all_of] for name, all_of in digests.items()}
        wanted = found[FP32] if truths is None else self._labels(truths, unit=unit)
        precise = {name: Matches.of(boxes, wanted) for name, boxes in found.items()}
        near = {name: Matches.of(boxes, found[FP32]) for name, boxes in found.items()}
        in_pixels = self.image is not None or not unit
        return {
            "classes": self.decoding.classes,
            "boxes": sum(map(len, wanted)),
            "decoding": {
                **asdict(self.decoding),
                "background": self.decoding.background or "none",
                "units": "image" if unit else "pixels",
            },
            **{name: _row(precise[name], precise[FP32], near[name], in_pixels=in_pixels) for name in found},
        }

    def _pixels(self, boxes: Boxes, unit: bool) -> Boxes:
        height, width = self.image if self.image is not None and unit else (1, 1)
        return boxes.scale(width, height)

    def _expect_inside(self, exact: Sequence[Boxes], *, unit: bool) -> None:
        """Raises DataError (E402) if too few of fp32's boxes touch the image."""
        if not unit and self.image is None:
            return
        height, width = (1, 1) if unit or self.image is None else self.image
        corners = np.concatenate([each.corners for each in exact])
        inside = ((corners[:, 2:] >= 0) & (corners[:, :2] <= (width, height))).all(axis=1).mean()
        if inside < INSIDE:
            reason = f"only {inside:.0%} of fp32's boxes touch the image: these are no such boxes"
            raise _wrong(self.decoding.boxes, reason, OWN_METRIC)

    def _labels(self, truths: Array, *, unit: bool) -> list[Boxes]:
        """The true boxes of every sample. Raises DataError (E402) for labels that are not boxes."""
        limit = "[samples, boxes, 5] of class, x1, y1, x2, y2; class -1 where a sample has fewer boxes"
        if truths.ndim != 3 or truths.shape[2] != 5 or truths.dtype.kind not in "iuf":
            raise DataError("E402", f"the labels are {truths.dtype} {list(truths.shape)}", tensor="y", limit=limit)
        values = truths.astype(np.float64)
        kept = values[..., 0] >= 0
        rows = values[kept]
        good = np.isfinite(rows).all() and (rows[:, 0] == np.floor(rows[:, 0])).all()
        if not len(rows) or not good or not (rows[:, 3:] > rows[:, 1:3]).all():
            reason = "the labels have boxes that are none" if len(rows) else "the labels have no boxes"
            raise DataError("E402", reason, tensor="y", limit=limit)
        if rows[:, 0].max() >= self.decoding.classes:
            limit = f"classes 0..{self.decoding.classes - 1}"
            raise DataError("E402", f"a label is of class {rows[:, 0].max():.0f}", tensor="y", limit=limit)
        found = [
            Boxes(each[:, 1:], np.ones(len(each)), each[:, 0].astype(np.int64))
            for each in (sample[mask] for sample, mask in zip(values, kept, strict=True))
        ]
        own = in_units(found)
        if own != unit and self.image is None:
            reason = "the labels are in other units than the model's boxes, and no input tells the image's size"
            raise DataError("E402", reason, tensor="y", remedy="save the labels in the units of the model's boxes")
        return [self._pixels(each, own) for each in found]


def in_units(boxes: Sequence[Boxes]) -> bool:
    """Whether the coordinates are fractions of the image."""
    return all(np.abs(each.corners).max(initial=0) <= UNIT for each in boxes)


def _expect_sound(exact: Sequence[DecodedBoxes], decoding: Decoding) -> None:
    """Raises DataError (E402) if fp32's outputs contradict the decoding."""
    low, high = min(each.low for each in exact), max(each.high for each in exact)
    if low < -SURE or high > 1 + SURE:
        reason = f"the scores in fp32 lie in {low:.4g}..{high:.4g}: they are no probabilities"
        raise _wrong(decoding.scores, reason, OWN_METRIC)
    if not decoding.background and all(each.distributions for each in exact):
        reason = "the scores of every box sum to 1: one of the classes must be the background"
        raise _wrong(decoding.scores, reason, OWN_METRIC)
    if not sum(len(each.boxes) for each in exact):
        reason = f"fp32 detects nothing: the largest score is {high:.4g}"
        raise _wrong(decoding.scores, reason, OWN_METRIC)
    corners = np.concatenate([each.boxes.corners for each in exact])
    wrong = int(np.count_nonzero((corners[:, 2:] < corners[:, :2]).any(axis=1)))
    if wrong:
        reason = (
            f"{wrong} of {len(corners)} boxes of fp32 end before they begin: not the format {decoding.box_format}"
        )
        raise _wrong(decoding.boxes, reason, OWN_METRIC)


def _wrong(tensor: str, reason: str, remedy: str) -> DataError:
    return DataError("E402", reason, tensor=tensor, remedy=remedy)


@frozen
class ClassMatches:
    """The detections of one class in all samples, in order of descending score: correctness and sample of each."""

    right: Array
    sample: Array
    truths: Array
    """(samples,): the number of true boxes of the class in each."""


@frozen
class Matches:
    """Matches between the detections of a computation and the true boxes."""

    by_class: tuple[ClassMatches, ...]
    """One for every class that has a true box."""
    hits: Array
    truths: Array
    apart: Array
    """(samples,) each: numbers of boxes found and of true boxes, and the sum of the errors of those found."""

    @classmethod
    def of(cls, found: Sequence[Boxes], wanted: Sequence[Boxes]) -> Matches:
        """Matches sample by sample. A box's error is the mean distance of its coordinates from the true ones."""
        pairs = [match_boxes(*each) for each in zip(found, wanted, strict=True)]
        apart = [
            float(np.abs(each.corners[pair >= 0] - true.corners[pair[pair >= 0]]).mean(axis=1).sum())
            for each, true, pair in zip(found, wanted, pairs, strict=True)
        ]
        hits = np.array([np.count_nonzero(pair >= 0) for pair in pairs], np.float64)
        truths = np.array([len(each) for each in wanted], np.float64)
        return cls(tuple(_by_class(found, wanted, pairs)), hits, truths, np.array(apart))

    def precision(self, weights: Array) -> Array:
        """Mean average precision for each row of weights (drawings, samples); NaN without a true box."""
        total, classes = np.zeros(len(weights)), np.zeros(len(weights))
        for each in self.by_class:
            found = average_precision(each.right, weights[:, each.sample], weights @ each.truths)
            total += np.nan_to_num(found)
            classes += ~np.isnan(found)
        return ratio(total, classes)

    def recall(self, weights: Array) -> tuple[Array, Array]:
        """The share of the true boxes that are found, and their mean error: (drawings,), NaN if there are none."""
        hits = weights @ self.hits
        return ratio(hits, weights @ self.truths), ratio(weights @ self.apart, hits)


def _by_class(found: Sequence[Boxes], wanted: Sequence[Boxes], pairs: Sequence[Array]) -> list[ClassMatches]:
    scores = np.concatenate([each.scores for each in found])
    classes = np.concatenate([each.classes for each in found])
    right = np.concatenate(pairs) >= 0
    sample = np.repeat(np.arange(len(found)), [len(each) for each in found])
    order = np.argsort(-scores, kind="stable")
    classes, right, sample = classes[order], right[order], sample[order]
    result: list[ClassMatches] = []
    for number in np.unique(np.concatenate([each.classes for each in wanted])):
        own = classes == number
        truths = np.array([(each.classes == number).sum() for each in wanted], np.float64)
        result.append(ClassMatches(right[own], sample[own], truths))
    return result


def _row(precise: Matches, reference: Matches, near: Matches, *, in_pixels: bool) -> dict[str, Any]:
    """precise, reference: this computation and fp32 against the truth; near: this one against fp32."""

    def of(weights: Array) -> Array:
        precision = precise.precision(weights)
        difference = precision - reference.precision(weights)
        return np.stack([precision, difference, *near.recall(weights)], axis=1)

    row: dict[str, Any] = {}
    for name, (value, ends) in zip(NAMES, estimate(of, len(near.hits)), strict=True):
        key = "interval" if name == "map50" else f"{name}_interval"
        row |= {name: value, key: None if ends is None else list(ends)}
    if not in_pixels:
        row |= {"box_error_px": None, "box_error_px_interval": None}
    return row
