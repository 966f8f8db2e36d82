"""A drop-in replacement for an onnxruntime session.

session = npuc.Session(npuc.load("model.npu"))
outputs = session.run(None, {"x": image})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npuc.api import Compiled
from npuc.errors import DataError
from npuc.ir import Array
from npuc.program import OBJECT, STRING, Port
from npuc.samples.structured import objects, row


class Session:
    """A program with the methods of onnxruntime.InferenceSession: one sample per run, in the model's shapes."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled

    def get_inputs(self) -> tuple[Port, ...]:
        """Name, shape and dtype of every input."""
        return self.compiled.program.inputs

    def get_outputs(self) -> tuple[Port, ...]:
        """Name, shape and dtype of every output."""
        return self.compiled.program.outputs

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """These outputs, or all, for one sample.

        Raises DataError (E401, E402) for missing inputs, wrong shapes, or non-numeric values; KeyError for unknown
        outputs.
        """
        batch = {port.name: _checked(port, feeds) for port in self.get_inputs()}
        outputs = {name: row(values, 0) for name, values in self.compiled.runner(batch).items()}
        return [outputs[name] for name in output_names or [port.name for port in self.get_outputs()]]


def _checked(port: Port, feeds: Mapping[str, Any]) -> Array:
    """The value of an input as the one sample of a batch."""
    if port.name not in feeds:
        raise DataError("E401", "the input is not fed", tensor=port.name, limit=f"fed: {', '.join(feeds)}")
    if port.dtype == OBJECT:
        return objects([feeds[port.name]])
    value = np.asarray(feeds[port.name], object if port.dtype == STRING else None)
    fits = value.ndim == len(port.shape) and all(
        extent in (-1, given) for extent, given in zip(port.shape, value.shape, strict=True)
    )
    if not fits or (value.dtype.kind not in "fiub" and port.dtype != STRING):
        limit = f"{list(port.shape)} of {port.dtype}"
        raise DataError("E402", f"{value.dtype} {list(value.shape)} is fed", tensor=port.name, limit=limit)
    return objects([value]) if port.dtype == STRING else value.astype(port.dtype)[None]
