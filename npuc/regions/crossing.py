"""Inputs of the NPU parts: the values of tensors that cross between parts, from onnxruntime in float."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from npuc.errors import DataError, ModelError
from npuc.frontend.model import ImportedModel
from npuc.ir import Array, TensorType
from npuc.regions import graphs
from npuc.regions.witnesses import foreign_session
from npuc.samples.loading import Samples

IN_MEMORY = 1 << 28
"""The most bytes of crossing tensors, over all samples, in memory; larger ones are in files."""


def crossing(network: ImportedModel, names: Sequence[str], samples: Samples, stack: ExitStack) -> dict[str, Array]:
    """The values of tensors on all samples, (samples, *shape), from onnxruntime on the whole model in float.

    stack: closes the files of large values. Raises DataError (E402) if onnxruntime cannot run a sample.
    """
    computed = [name for name in names if name not in network.inputs]
    values = _Arrays({name: network.types[name] for name in names}, len(samples), stack)
    behind = graphs.behind(network, computed)
    needed = {name for node in behind for name in node.reads}
    run: Callable[..., Any] | None = None
    if computed:
        run = foreign_session(graphs.region_model(network, behind, computed)).run
    for at, feed in enumerate(samples.feeds()):
        read = {name: value for name, value in feed.items() if name in needed}
        try:
            given = run(computed, read) if run is not None else []
        except ModelError as error:
            (problem,) = error.problems
            if problem.code != "E105":
                raise
            remedy = "give samples that the model takes with --calibration DATA.npz"
            raise DataError("E402", f"sample {at}: {problem.reason}", remedy=remedy) from None
        values.put(at, {**feed, **dict(zip(computed, given, strict=True))})
    return values.arrays


OF_SHAPES = "where the model is exported, make the shapes before this tensor constant"


class _Arrays:
    """Values of tensors by sample, in memory or in files."""

    def __init__(self, types: Mapping[str, TensorType], count: int, stack: ExitStack) -> None:
        sizes = {name: count * each.bytes for name, each in types.items()}
        folder = Path(stack.enter_context(TemporaryDirectory())) if sum(sizes.values()) > IN_MEMORY else None
        self.arrays: dict[str, Array] = {}
        for number, (name, each) in enumerate(types.items()):
            shape = (count, *each.shape)
            self.arrays[name] = (
                np.empty(shape, each.dtype)
                if folder is None
                else np.memmap(folder / str(number), each.dtype, "w+", shape=shape)
            )

    def put(self, at: int, values: Mapping[str, Array]) -> None:
        """Stores the values of a sample. Raises DataError (E402) if its shape differs."""
        for name, array in self.arrays.items():
            if values[name].shape != array.shape[1:]:
                reason = f"onnxruntime gives {list(values[name].shape)}"
                limit = f"{list(array.shape[1:])}, as ONNX defines the operator"
                raise DataError("E402", reason, tensor=name, limit=limit, remedy=OF_SHAPES)
            array[at] = values[name]
