"""The protocol of metrics: a sample's outputs become a digest, the digests of all computations a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from npuc.errors import DataError
from npuc.ir import Array

Outputs = Mapping[str, Array]
"""Outputs of one sample by name, in the model's own shapes."""
Truth = Array | np.generic | None
"""The label of one sample."""
FP32 = "fp32"
"""The computation that serves as the reference for the others."""


class Metric(Protocol):
    """A frozen dataclass of plain values, so that it can be sent to workers of a cluster."""

    @property
    def name(self) -> str:
        """The name, as for --metric."""
        ...

    def digest(self, outputs: Outputs, exact: Outputs, truth: Truth) -> Any:
        """The data of one sample that the report needs: plain values and small arrays.

        exact: the same outputs in fp32. Raises DataError (E402) for labels or outputs that cannot be judged.
        """
        ...

    def report(self, digests: Mapping[str, Sequence[Any]], truths: Array | None) -> dict[str, Any]:
        """The figures by computation and their basis: JSON values, with a dict for each computation.

        truths: the labels of all samples. Raises DataError (E402) if there is nothing to judge.
        """
        ...


def finite(values: Array, name: str) -> Array:
    """The values as float64. Raises DataError (E402) if they are not finite."""
    found = np.asarray(values, np.float64)
    if not np.isfinite(found).all():
        raise DataError("E402", "the output has values that are not finite", tensor=name)
    return found
