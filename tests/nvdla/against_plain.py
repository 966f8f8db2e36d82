"""A network compiled, and every layer of its program beside plain arithmetic, on data that is not only noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx

from npuc import running
from npuc.ir import Array, Graph
from npuc.program import as_loaded
from npuc.samples.loading import varied_samples
from npuc.target import Options, Request, target
from npuc.targets.nvdla.program import lowering
from tests.compiled import compilation
from tests.nvdla.plain import differences

CONFIGURATIONS = (
    ("nvdla-small", "int8"),
    ("nvdla-full", "int8"),
    ("nvdla-small", "int8"),
    ("nvdla-full", "int16"),
)
SAMPLES = 6


def compared(
    model: onnx.ModelProto, folder: Path, name: str, precision: str, **options: Any
) -> tuple[int, list[str]]:
    """How many results of layers were compared, and those that differ. Raises NpucError where npuc refuses."""
    path = folder / "network.onnx"
    onnx.save(model, path)
    graphs: list[Graph] = []
    lower = lowering.lower

    def kept(*given: object) -> lowering.Lowered:
        found = lower(*given)  # type: ignore[arg-type]
        graphs.append(found.quantised.graph)
        return found

    with patch.object(lowering, "lower", kept):
        program = compilation(
            Request(path, target(name), Options(precision=precision, proof="off", **options))
        ).program
    program = as_loaded(program)
    seen: dict[str, Array] = {}
    feeds = varied_samples(running.program_inputs(program), SAMPLES, seed=3).inputs
    reached = {
        key: np.where(np.abs(values) > 2, 4 * values, values).astype(values.dtype) for key, values in feeds.items()
    }
    target(name).runner(program)(reached, seen.__setitem__)
    found = [differences(graphs[-1], seen, sample) for sample in range(SAMPLES)]
    return sum(count for count, _ in found), sorted({each for _, wrong in found for each in wrong})
