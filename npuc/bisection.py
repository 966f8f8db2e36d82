"""Where a program first goes wrong: layer, element, tile and instruction, with a small model that shows it.

"Wrong" is a difference between the simulator and the integer network; where there is none, the layer at which the
error against fp32 jumps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from npuc import data
from npuc.driver import BATCH
from npuc.frontend.reading import read_model
from npuc.ir import Array
from npuc.program import Program, save_files
from npuc.reference import session
from npuc.target import Origin, Target

Report = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """The first element, in the order of layers and samples, that the machine computes otherwise."""

    layer: str
    op: str
    nodes: tuple[str, ...]
    tensor: str
    sample: int
    element: tuple[int, ...]
    expected: int
    found: int
    differing: int
    """Elements of this tensor that differ in this sample."""
    origin: Origin | None
    """The instruction that computed the element, where one did."""


def first_difference(
    program: Program, target: Target, reference: bytes, graph: Report, samples: data.Samples
) -> Difference | None:
    """The first difference between the simulator and the integer network, or None.

    reference, graph: reference.onnx and graph.json. Layers come first, then samples: what a wrong layer spoils
    behind itself does not hide it.
    """
    expected = session(reference)
    run = target.runner(program)
    best: tuple[int, int, Array, Array] | None = None
    for number, batch in enumerate(samples.batches(BATCH)):
        simulated: dict[str, Array] = {}
        run(batch.inputs, simulated.__setitem__)
        names = [layer["tensor"] for layer in graph["layers"] if layer["tensor"] in simulated]
        for sample, feed in enumerate(batch.feeds()):
            exact = dict(zip(names, expected.run(names, feed), strict=True)) if names else {}
            for order, layer in enumerate(graph["layers"][: best[0] if best else None]):
                name = layer["tensor"]
                if name in exact and (exact[name] != simulated[name][sample]).any():
                    best = order, BATCH * number + sample, exact[name], simulated[name][sample]
                    break
    return None if best is None else _difference(program, target, graph["layers"][best[0]], *best[1:])


def _difference(
    program: Program, target: Target, layer: Report, sample: int, expected: Array, found: Array
) -> Difference:
    wrong = np.argwhere(expected != found)
    element = tuple(int(index) for index in wrong[0])
    return Difference(
        layer["name"],
        layer["op"],
        tuple(layer["nodes"]),
        layer["tensor"],
        sample,
        element,
        int(expected[element]),
        int(found[element]),
        len(wrong),
        target.origin(program, layer["tensor"], element),
    )


def largest_jump(report: Report, graph: Report) -> dict[str, Any] | None:
    """The layer that loses the most decibels against the worst of what it reads; None where no layer is compared.

    report: that of `npuc verify`.
    """
    errors = {layer["tensor"]: each for layer, each in zip(graph["layers"], report["layers"], strict=True)}
    found: list[tuple[float, Report]] = []
    for layer in graph["layers"]:
        own = (errors[layer["tensor"]].get("entire") or {}).get("sqnr_db")
        before = [(errors[name].get("entire") or {}).get("sqnr_db") for name in layer["inputs"] if name in errors]
        known = [each for each in before if each is not None]
        if own is not None and known:
            found.append((min(known) - own, layer))
    if not found:
        return None
    loss, layer = max(found, key=lambda each: each[0])
    return {
        "layer": layer["name"],
        "op": layer["op"],
        "nodes": layer["nodes"],
        "tensor": layer["tensor"],
        "loss_db": loss,
    }


def reproduction(model: Path, graph: Report, tensor: str, feed: Mapping[str, Array]) -> dict[str, bytes]:
    """A minimal ONNX model of the layer that computes an int8 tensor, its input, and what to do with them.

    feed: the sample, in the model's own shapes. The model is that part of the ONNX model between the float tensors
    that the layer reads and the one that it computes; the whole model where the passes have left no such part.
    """
    fp32 = read_model(model)
    part = _part(fp32, graph, tensor)
    inputs = _inputs(fp32, [port.name for port in part.graph.input], feed)
    with TemporaryDirectory() as folder:
        data.save(Path(folder) / "input.npz", {name: values[None] for name, values in inputs.items()})
        data.save(Path(folder) / "sample.npz", {name: values[None] for name, values in feed.items()})
        files = {name: (Path(folder) / name).read_bytes() for name in ("input.npz", "sample.npz")}
    return {"layer.onnx": part.SerializeToString(deterministic=True), **files}


def commands(target: Target, model: Path, directory: Path) -> str:
    """The commands that reproduce it: in the program, and in a program of the layer alone."""
    return (
        "#!/bin/sh\n"
        f"npuc verify {quote(str(model.resolve()))} {quote(str(directory.resolve()))} "
        "--data sample.npz --allow-modified\n"
        f"npuc compile layer.onnx --target {target.name} --calibration input.npz -o layer.npu\n"
        "npuc verify layer.onnx layer.npu --data input.npz\n"
    )


def save(files: Mapping[str, bytes], text: str, folder: Path) -> list[str]:
    """Writes the reproduction; gives the names. Raises ArtefactError (E505) for a folder that has content."""
    contents = {**files, "reproduce.sh": text.encode()}
    save_files(contents, folder)
    return sorted(contents)


def _part(model: Any, graph: Report, tensor: str) -> Any:
    from onnx import checker
    from onnx.utils import Extractor

    floats = {name: each["float"] for name, each in graph["tensors"].items()}
    layer = next(each for each in graph["layers"] if each["tensor"] == tensor)
    known = {port.name for port in model.graph.input} | {name for node in model.graph.node for name in node.output}
    read = list(dict.fromkeys(floats[name] for name in layer["inputs"] if name in floats))
    if not read or not {*read, floats[tensor]} <= known or floats[tensor] in read:
        return model
    try:
        from onnx.shape_inference import infer_shapes

        part = Extractor(infer_shapes(model)).extract_model(read, [floats[tensor]])
        checker.check_model(part)
    except Exception:  # what onnx cannot cut is given whole
        return model
    return part


def _inputs(model: Any, names: Sequence[str], feed: Mapping[str, Array]) -> dict[str, Array]:
    """The values of these tensors of the fp32 model for a sample."""
    from npuc.verification import with_outputs

    missing = [name for name in names if name not in feed]
    found = {name: feed[name] for name in names if name in feed}
    if missing:
        values = session(with_outputs(model, missing)).run(missing, feed)
        found.update(zip(missing, values, strict=True))
    return found
