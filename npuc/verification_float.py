"""Verification of floating-point programs: the simulated program against onnxruntime.

There is no integer reference, so `bit_exact` is null. Layers are compared where the target's simulator shows their
results and the ONNX model has a tensor of that name; errors are accumulated ("entire"), never isolated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npuc.data import Samples
from npuc.errors import ArtefactError
from npuc.frontend.reading import read_model
from npuc.ir import Array
from npuc.program import Program, load_evidence
from npuc.records import read
from npuc.reference import session
from npuc.target import Counting, Target
from npuc.verification import Difference, Tolerance, check_model, present, with_outputs


@dataclass(frozen=True)
class _Layer:
    """A layer in graph.json."""

    op: str
    tensor: str
    nodes: tuple[str, ...]


@dataclass
class _Tally:
    """What is gathered over the samples."""

    outputs: dict[str, Difference] = field(default_factory=dict[str, Difference])
    layers: dict[str, Difference] = field(default_factory=dict[str, Difference])
    agreeing: int = 0


def verify_float(
    model: Path,
    directory: Path,
    program: Program,
    target: Target,
    samples: Samples,
    tolerance: Tolerance,
    *,
    allow_modified: bool = False,
    advance: Callable[[int], None] | None = None,
    chip_model: str = "own",
) -> dict[str, Any]:
    """The verification report of the command line's contract.

    Raises ArtefactError (E501) if the program was compiled from another model, (E502) if its evidence is damaged.
    """
    check_model(model, program, allow_modified)
    layers = _layers(load_evidence(directory, program, allow_modified=allow_modified)["graph.json"])
    outputs = [port.name for port in program.outputs]
    fp32 = read_model(model)
    names = list(dict.fromkeys([*outputs, *present(fp32, [layer.tensor for layer in layers])]))
    reference, run, tally = session(with_outputs(fp32, names)), target.runner(program, chip_model), _Tally()
    for index in range(len(samples)):
        feed = {name: values[index] for name, values in samples.inputs.items()}
        exact = dict(zip(names, reference.run(names, feed), strict=True))
        shown: dict[str, Array] = {}
        feeds = {name: value[np.newaxis] for name, value in feed.items()}
        found = run(feeds, shown.__setitem__)
        _compare(exact, {name: found[name][0] for name in outputs}, {n: v[0] for n, v in shown.items()}, tally)
        if advance is not None:
            advance(1)
    report = _report(tally, layers, program, len(samples), tolerance)
    return {**report, "chip_model": chip_model, "cycles": run.cycles if isinstance(run, Counting) else None}


def _layers(content: bytes) -> tuple[_Layer, ...]:
    """The layers of graph.json. Raises ArtefactError (E502) where it is not one that npuc wrote."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise ArtefactError(
            "E502", "graph.json is damaged: it is not JSON", remedy="compile the model again"
        ) from None
    entries = found.get("layers") if isinstance(found, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return read(tuple[_Layer, ...], entries, "layers", "graph.json")


def _compare(
    exact: Mapping[str, Array], found: Mapping[str, Array], shown: Mapping[str, Array], tally: _Tally
) -> None:
    for name, value in found.items():
        tally.outputs.setdefault(name, Difference()).add(exact[name], value)
    for name, value in shown.items():
        if name in exact:
            tally.layers.setdefault(name, Difference()).add(exact[name], value)
    first = next(iter(found))
    if found[first].size:
        tally.agreeing += int(np.argmax(exact[first]) == np.argmax(found[first]))


def _report(
    tally: _Tally, layers: tuple[_Layer, ...], program: Program, samples: int, tolerance: Tolerance
) -> dict[str, Any]:
    """The contract's JSON; status is `mismatch` outside the tolerance."""
    outputs: list[dict[str, Any]] = [
        {"name": name, **difference.as_json()} for name, difference in tally.outputs.items()
    ]
    sizes = {port.name: prod(port.shape) for port in program.outputs}
    return {
        "status": "ok" if all(map(tolerance.admits, tally.outputs.values())) else "mismatch",
        "samples": samples,
        "bit_exact": None,
        "argmax_agreement": tally.agreeing / samples if sizes[outputs[0]["name"]] > 1 else None,
        "outputs": outputs,
        "layers": [_layer(layer, tally.layers.get(layer.tensor)) for layer in layers],
    }


def _layer(layer: _Layer, entire: Difference | None) -> dict[str, Any]:
    known = entire.as_json() if entire else None
    return {
        "name": layer.tensor,
        "op": layer.op,
        "nodes": layer.nodes,
        "bit_exact": None,
        **(known or dict.fromkeys(("sqnr_db", "cosine", "max_abs_error", "exact"))),
        "entire": known,
        "single": None,
    }
