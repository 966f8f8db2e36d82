"""Runs a program one sample after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array
from npuc.program import count_of

if TYPE_CHECKING:
    from npuc.target import Observer


def one_by_one(
    run: Callable[[Mapping[str, Array], Observer | None], dict[str, Array]],
    feeds: Mapping[str, Array],
    observe: Observer | None,
) -> dict[str, Array]:
    """Outputs (samples, *shape) of a machine that runs one sample at a time."""
    found: list[dict[str, Array]] = []
    seen: dict[str, list[Array]] = {}

    def collect(name: str, values: Array) -> None:
        seen.setdefault(name, []).append(values)

    for at in range(count_of(feeds)):
        one = {name: values[at : at + 1] for name, values in feeds.items()}
        found.append(run(one, None if observe is None else collect))
    if observe is not None:
        for name, values in seen.items():
            observe(name, np.concatenate(values))
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}
