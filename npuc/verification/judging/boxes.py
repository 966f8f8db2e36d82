"""Boxes: overlap, non-maximum suppression, matching, and average precision."""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.verification.judging.intervals import ratio

LEAST_OVERLAP = 0.5
"""The least intersection over union of a correct detection."""


@frozen
class Boxes:
    """The boxes of one sample, in order of descending score. Corners: (boxes, 4) float64, x1, y1, x2, y2."""

    corners: Array
    scores: Array
    classes: Array

    def __len__(self) -> int:
        return len(self.corners)

    def taken(self, which: Array) -> Boxes:
        """A selection of the boxes, by index or mask."""
        return Boxes(self.corners[which], self.scores[which], self.classes[which])

    def scaled(self, width: float, height: float) -> Boxes:
        """The boxes with their coordinates scaled."""
        return Boxes(self.corners * (width, height, width, height), self.scores, self.classes)


def overlaps(first: Array, second: Array) -> Array:
    """Intersection over union of all pairs: corners (n, 4) and (m, 4) give (n, m); 0 if both boxes are empty.

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
    """The boxes left by non-maximum suppression: of two of a class that overlap more, the higher score stays."""
    left = np.ones(len(boxes), bool)
    for at in range(len(boxes)):
        if left[at]:
            rest = np.flatnonzero(left[at + 1 :] & (boxes.classes[at + 1 :] == boxes.classes[at])) + at + 1
            over = overlaps(boxes.corners[at : at + 1], boxes.corners[rest])[0]
            left[rest[over > most_overlap]] = False
    return boxes.taken(left)


def matched(found: Boxes, wanted: Boxes) -> Array:
    """The index of the true box that each detection matches, -1 for none: (detections,) int64.

    A detection is compared with the box of its class that it overlaps most. It matches if the overlap is
    LEAST_OVERLAP or more and no detection of a higher score has matched that box: further detections of it are
    wrong.
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
    """The area under the curve of the best precision at each recall or above: (drawings,).

    right: (detections,) bool, in order of descending score; weights: how often each detection counts, (drawings,
    detections); truths: the number of true boxes, (drawings,). The result is NaN without true boxes.
    Source: VOC development kit from 2010 on, VOCap.m.

    >>> right = np.array([True, False, True, False])
    >>> average_precision(right, np.ones((1, 4)), np.array([4.0])).tolist()  # 1 up to recall 1/4, 2/3 up to 1/2
    [0.41666666666666663]
    """
    hits, all_found = np.cumsum(weights * right, axis=1), np.cumsum(weights, axis=1)
    precision = np.divide(hits, all_found, out=np.zeros_like(hits), where=all_found > 0)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    return ratio((weights * right * envelope).sum(axis=1), truths)
