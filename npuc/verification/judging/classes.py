"""Top-1: how often the largest element of the first output is the labelled class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.verification.judging.intervals import interval, paired_difference
from npuc.verification.judging.metric import FP32, Outputs, Truth
from npuc.verification.metrics import CLASSES_FOR_TOP5, ranks


@frozen
class Classes:
    """Top-1 and top-5 of the first output; the digest is the label's rank and the largest class."""

    output: str
    classes: int
    name: str = "top1"

    def digest(self, outputs: Outputs, exact: Outputs, truth: Truth) -> tuple[int, int]:  # noqa: ARG002
        """The rank of the labelled class, and the class with the largest element."""
        values = outputs[self.output].reshape(1, -1)
        return int(ranks(values, np.asarray(truth))[0]), int(values.argmax())

    def report(self, digests: Mapping[str, Sequence[Any]], truths: Array | None) -> dict[str, Any]:  # noqa: ARG002
        """Shares of samples with Wilson's intervals, and the paired difference from fp32."""
        pairs = {name: np.array(found, np.int64).reshape(-1, 2) for name, found in digests.items()}
        return {"classes": self.classes, **{name: self._row(found, pairs[FP32]) for name, found in pairs.items()}}

    def _row(self, found: Array, exact: Array) -> dict[str, Any]:
        right, reference = (each[:, 0] == 0 for each in (found, exact))
        difference, low, high = paired_difference(reference, right)
        enough = self.classes >= CLASSES_FOR_TOP5
        return {
            "top1": float(np.mean(right)),
            "top5": float(np.mean(found[:, 0] < 5)) if enough else None,
            "interval": list(interval(int(right.sum()), len(right))),
            "agreement": float(np.mean(found[:, 1] == exact[:, 1])),
            "difference": difference,
            "difference_interval": [low, high],
        }
