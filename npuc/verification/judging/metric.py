"""What every metric does: a sample's outputs become a digest, the digests of all computations a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from npuc.errors import DataError
from npuc.ir import Array

Outputs = Mapping[str, Array]
"""Of one sample, by name, in the model's own shapes."""
Truth = Array | np.generic | None
"""What the labels say of one sample."""
FP32 = "fp32"
"""The computation that the others are compared with."""


class Metric(Protocol):
    """Goes to the workers of a cluster and back: a frozen dataclass of plain values."""

    @property
    def name(self) -> str:
        """As --metric has it."""
        ...

    @property
    def judged(self) -> tuple[str, ...]:
        """Names of the outputs that it looks at."""
        ...

    def digest(self, outputs: Outputs, exact: Outputs, truth: Truth) -> Any:
        """What the report needs of one sample: plain values and small arrays.

        exact: the same outputs in fp32. Raises DataError (E402) for labels or outputs that it cannot judge.
        """
        ...

    def report(self, digests: Mapping[str, Sequence[Any]], truths: Array | None) -> dict[str, Any]:
        """The figures by computation, and what they rest on: JSON values, with a dict for each computation.

        truths: the labels of all samples. Raises DataError (E402) where there is nothing to judge.
        """
        ...


def finite(values: Array, name: str) -> Array:
    """The values as float64. Raises DataError (E402) where they are not finite."""
    found = np.asarray(values, np.float64)
    if not np.isfinite(found).all():
        raise DataError("E402", "the output has values that are not finite", tensor=name)
    return found
