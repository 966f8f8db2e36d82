"""Runs programs on samples: batch by batch, on the simulator of their target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Graph, TensorType
from npuc.program import Program, count_of
from npuc.samples.loading import Samples
from npuc.samples.structured import objects, row
from npuc.target import Runner, Target

if TYPE_CHECKING:
    from npuc.target import Observer


BATCH = 32
"""The most samples of a batch."""
BATCH_ELEMENTS = 1 << 19
"""The most input elements in a batch: feature maps of large images would fill the memory."""


def input_types(graph: Graph) -> dict[str, TensorType]:
    """Name and type of every input of a graph."""
    return {name: graph.tensors[name] for name in graph.inputs}


def program_inputs(program: Program) -> dict[str, TensorType]:
    """Name and type of every input of a program, from its manifest."""
    return {port.name: TensorType(port.shape, port.dtype) for port in program.inputs}


def batch_of(program: Program) -> int:
    """The number of samples simulated together."""
    elements = sum(abs(each.size) for each in program_inputs(program).values())
    return min(max(BATCH_ELEMENTS // max(elements, 1), 1), BATCH)


def run_program(program: Program, target: Target, samples: Samples) -> dict[str, Array]:
    """The outputs of all samples, stacked along axis 0 if the model's first dimension is 1."""
    return run_batches(target.runner(program, "own"), samples, batch=batch_of(program))


def run_batches(
    run: Runner, samples: Samples, advance: Callable[[int], None] | None = None, batch: int = BATCH
) -> dict[str, Array]:
    """The same for a loaded program; batch: the number of samples simulated together.

    advance: called with the number of samples done after each batch.
    """
    parts: list[dict[str, Array]] = []
    for each in samples.batches(batch):
        parts.append(run(each.inputs))
        if advance is not None:
            advance(len(each))
    return {name: _stack([part[name] for part in parts]) for name in parts[0]}


def _stack(parts: Sequence[Array]) -> Array:
    """The samples of all batches: an object array if they do not share a shape."""
    if len({(part.shape[1:], part.dtype) for part in parts}) > 1:
        return objects([row(part, at) for part in parts for at in range(len(part))])
    values = np.concatenate(parts)
    return values[:, 0] if values.ndim > 1 and values.shape[1] == 1 else values


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
