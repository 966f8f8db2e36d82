"""A metric of the user's own: a Python function of a sample's outputs and its label."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from npuc.errors import DataError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.verification.judging.intervals import estimated
from npuc.verification.judging.metric import FP32, Outputs, Truth


@frozen
class Own:
    """The mean over samples of the number that FILE.py:FUNCTION returns for (outputs by name, truth).

    truth: the sample's label or, if fp32 is the reference, its outputs by name.
    """

    outputs: tuple[str, ...]
    labelled: bool
    file: str
    function: str

    @property
    def name(self) -> str:
        """As given to --metric."""
        return f"{self.file}:{self.function}"

    def digest(self, outputs: Outputs, exact: Outputs, truth: Truth) -> float:
        """The function's number. Raises DataError (E402) if it fails, or returns anything else."""
        function = loaded(self.file, self.function)
        try:
            found = float(function(dict(outputs), truth if self.labelled else dict(exact)))
        except Exception as error:  # the user's code may raise anything
            raise DataError("E402", f"{self.name} fails: {type(error).__name__}: {error}") from None
        if not np.isfinite(found):
            raise DataError("E402", f"{self.name} returns {found}", limit="a finite number")
        return found

    def report(self, digests: Mapping[str, Sequence[Any]], truths: Array | None) -> dict[str, Any]:  # noqa: ARG002
        """Means and their differences from fp32's; intervals by the bootstrap."""
        return {name: _row(np.array(found), np.array(digests[FP32])) for name, found in digests.items()}


def _row(found: Array, exact: Array) -> dict[str, Any]:
    def of(weights: Array) -> Array:
        means = [weights @ each / weights.sum(axis=1) for each in (found, found - exact)]
        return np.stack(means, axis=1)

    (mean, ends), (difference, apart) = estimated(of, len(found))
    return {
        "mean": mean,
        "interval": None if ends is None else list(ends),
        "difference": difference,
        "difference_interval": None if apart is None else list(apart),
    }


@cache
def loaded(file: str, function: str) -> Callable[..., Any]:
    """The function of a Python file. Raises DataError (E402) if there is none, or the file does not run."""
    try:
        found = runpy.run_path(file).get(function)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise DataError("E402", f"'{file}' does not run: {type(error).__name__}: {error}") from None
    if not callable(found):
        raise DataError("E402", f"'{file}' has no function '{function}'", limit="--metric FILE.py:FUNCTION")
    return found
