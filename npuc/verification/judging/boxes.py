"""Boxes: how much they overlap, which of them are left, which belong together, and how precise they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npuc.ir import Array
from npuc.verification.judging.intervals import ratio

LEAST_OVERLAP = 0.5
"""Intersection over union of a detection that is right."""


@dataclass(frozen=True)
class Boxes:
    """Of one sample, the highest score first. Corners: (boxes, 4) float64, x1, y1, x2, y2."""

    corners: Array
    scores: Array
    classes: Array

    def __len__(self) -> int:
        return len(self.corners)

    def taken(self, which: Array) -> Boxes:
        """Some of them, by number or as bool."""
        return Boxes(self.corners[which], self.scores[which], self.classes[which])

    def scaled(self, width: float, height: float) -> Boxes:
        """The same in other units."""
        return Boxes(self.corners * (width, height, width, height), self.scores, self.classes)


def overlaps(first: Array, second: Array) -> Array:
    """Intersection over union of each with each: (n, 4) and (m, 4) corners give (n, m); 0 where both are empty.

    >>> overlaps(np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 0, 3, 2], [5, 5, 6, 6]])).round(3).tolist()
    [[0.333, 0.0]]
    """
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [np.clip(each[:, 2:] - each[:, :2], 0, None).prod(axis=1) for each in (first, second)]
    union = areas[0][:, None] + areas[1][None] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def suppressed(boxes: Boxes, most_overlap: float) -> Boxes:
    """What non-maximum suppression leaves: of a class no two that overlap more; the higher score stays."""
    left = np.ones(len(boxes), bool)
    for at in range(len(boxes)):
        if left[at]:
            rest = np.flatnonzero(left[at + 1 :] & (boxes.classes[at + 1 :] == boxes.classes[at])) + at + 1
            over = overlaps(boxes.corners[at : at + 1], boxes.corners[rest])[0]
            left[rest[over > most_overlap]] = False
    return boxes.taken(left)


def matched(found: Boxes, wanted: Boxes) -> Array:
    """The number of the true box that each detection finds, -1 for none: (detections,) int64.

    A detection looks at the box of its class that it overlaps most. It finds it where that is LEAST_OVERLAP or
    more and no detection of a higher score has found it: a second one is wrong.
    Source: Everingham et al., The PASCAL Visual Object Classes Challenge, 2010, section 4.2, and its VOCevaldet.m.
    """
    result = np.full(len(found), -1, np.int64)
    if not len(wanted):
        return result
    over = np.where(found.classes[:, None] == wanted.classes, overlaps(found.corners, wanted.corners), -1.0)
    taken: set[int] = set()
    for at, best in enumerate(over.argmax(axis=1).tolist()):
        if over[at, best] >= LEAST_OVERLAP and best not in taken:
            taken.add(best)
            result[at] = best
    return result


def average_precision(right: Array, weights: Array, truths: Array) -> Array:
    """The area under the precision that is reached at each recall or beyond: (drawings,).

    right: (detections,) bool, the highest score first; weights: how often each counts, (drawings, detections);
    truths: the true boxes, (drawings,); where there are none the result is NaN.
    Source: VOC development kit from 2010 on, VOCap.m.

    >>> right = np.array([True, False, True, False])
    >>> average_precision(right, np.ones((1, 4)), np.array([4.0])).tolist()  # 1 up to recall 1/4, 2/3 up to 1/2
    [0.41666666666666663]
    """
    hits, all_found = np.cumsum(weights * right, axis=1), np.cumsum(weights, axis=1)
    precision = np.divide(hits, all_found, out=np.zeros_like(hits), where=all_found > 0)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    return ratio((weights * right * envelope).sum(axis=1), truths)
