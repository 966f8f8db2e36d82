"""A part of a model, between tensors that the user names: its file, and the samples of its inputs.

`npuc compile --inputs A,B --outputs C` compiles the part as if the user had cut it out of the file. The program's
manifest says how, so that the same part is cut again to verify it. Data are the model's own inputs, of which
onnxruntime computes the part's, or those of the part.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from npuc.errors import ModelError
from npuc.frontend.binding import input_types
from npuc.frontend.foreign import all_inputs
from npuc.frontend.reading import parse_model
from npuc.ir import Array
from npuc.onnx_files.external_data import array_of
from npuc.program import Cut, Program
from npuc.samples.loading import load, save
from npuc.samples.sources import files_of
from npuc.system.budget import expect_room
from npuc.target import Request
from npuc.text.terminal import closest
from npuc.verification.equivalence import Original

if TYPE_CHECKING:
    import onnx


@contextmanager
def part_of(request: Request) -> Generator[tuple[Request, Cut | None]]:
    """The request for the part between the options' inputs and outputs, in files that exist during the block.

    Without such options the request itself. Raises ModelError (E109) for names that cut no part out of the model,
    DataError (E401, E402) as for other data.
    """
    options, cut = request.options, Cut(request.options.inputs, request.options.outputs)
    if not (cut.inputs or cut.outputs):
        yield request, None
        return
    with TemporaryDirectory() as folder:
        own = {each.name for each in parse_model(request.model, whole=False).graph.input}
        cut = replace(cut, shapes={name: shape for name, shape in request.shapes.items() if name in own})
        model, files = _files(request.model, cut, request.calibration, Path(folder))
        kept = {each.name for each in parse_model(model, whole=False).graph.input}
        shapes = {name: shape for name, shape in request.shapes.items() if name in kept or name not in own}
        inner = replace(request, options=replace(options, inputs=(), outputs=()))
        yield replace(inner, model=model, calibration=files, shapes=shapes), cut


@contextmanager
def compiled_part(
    model: Path, program: Program, data: Sequence[Path] = ()
) -> Generator[tuple[Path, tuple[Path, ...]]]:
    """The file of the part that a program was compiled from, and data for it; without a cut what is given."""
    cut = program.model.cut
    if cut is None:
        yield model, (*data,)
        return
    with TemporaryDirectory() as folder:
        yield _files(model, cut, data, Path(folder))


def with_cut(program: Program, cut: Cut | None) -> Program:
    """The program with the cut in its manifest."""
    if cut is None:
        return program
    told = {"inputs": [*cut.inputs], "outputs": [*cut.outputs], "shapes": {k: [*v] for k, v in cut.shapes.items()}}
    return replace(program, manifest={**program.manifest, "model": {**program.manifest["model"], "cut": told}})


def _files(model: Path, cut: Cut, data: Sequence[Path], folder: Path) -> tuple[Path, tuple[Path, ...]]:
    """The part's model, under the name of the whole, and its data."""
    part = _cut(model, cut)
    path = folder / model.name
    path.write_bytes(part.SerializeToString(deterministic=True))
    return path, _data(model, part.graph, cut, data, folder) if files_of(data) else (*data,)


def _data(model: Path, part: onnx.GraphProto, cut: Cut, data: Sequence[Path], folder: Path) -> tuple[Path, ...]:
    """The data if they are the part's inputs; else what the model computes of its own inputs."""
    whole = parse_model(model, whole=False).graph
    own = {each.name for each in whole.input}
    inputs = [each.name for each in part.input]
    computed = [name for name in inputs if name not in own]
    if {*computed} <= _arrays(data):
        return (*data,)
    front = _cut(model, Cut((), tuple(computed), cut.shapes))
    path = folder / "front" / model.name
    path.parent.mkdir()
    path.write_bytes(front.SerializeToString(deterministic=True))
    needed = {each.name for each in front.graph.input}
    front.graph.input.extend(each for each in part.input if each.name in own - needed)
    shapes = {each.name: cut.shapes[each.name] for each in front.graph.input if each.name in cut.shapes}
    samples, original = load(data, input_types(front.graph, (), shapes)), Original(path)
    rows: dict[str, list[Array]] = {name: [] for name in computed}
    for feed in samples.feeds():
        found = original.run({name: feed[name] for name in needed})
        for name, values in rows.items():
            if not values:
                expect_room(found[name].nbytes * len(samples), f"the samples of '{name}'")
            values.append(found[name])
    arrays = {name: np.stack(values) for name, values in rows.items()}
    arrays |= {name: np.stack([feed[name] for feed in samples.feeds()]) for name in inputs if name in own}
    save(folder / "part.npz", arrays if samples.truth is None else {**arrays, "y": samples.truth})
    return (folder / "part.npz",)


def _arrays(data: Sequence[Path]) -> set[str]:
    """The names in the first file; none if it cannot be read, which loading its samples tells."""
    try:
        with np.load(files_of(data)[0], allow_pickle=False) as archive:
            return {*archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError, IndexError):
        return set()


def _cut(model: Path, cut: Cut) -> onnx.ModelProto:
    """The nodes between the inputs and the outputs; without names the model's own.

    Raises ModelError (E109) for unknown names, and where inputs and outputs leave out what the part needs.
    """
    import onnx

    found = parse_model(model)
    graph = found.graph
    weights = {each.name for each in graph.initializer}
    weights.update(each.values.name for each in graph.sparse_initializer)
    own = {each.name: each for each in graph.input if each.name not in weights}
    producers = {name: node for node in graph.node for name in node.output if name}
    outputs = cut.outputs or tuple(each.name for each in graph.output)
    _expect_known(cut.inputs, {*own, *producers}, "--inputs")
    _expect_known(outputs, {*producers}, "--outputs")
    for value in graph.input:
        for dim, extent in zip(value.type.tensor_type.shape.dim, cut.shapes.get(value.name, ()), strict=False):
            dim.dim_value = extent
    reached = _reach(outputs, {*cut.inputs}, producers)
    for name in cut.inputs:
        if name not in reached:
            raise ModelError(
                "E109", "no output of the part depends on this input", tensor=name, limit=", ".join(outputs)
            )
        if name in outputs:
            raise ModelError(
                "E109", "the tensor is input and output of the part", tensor=name, limit="one of them"
            )
    missing = [name for name in own if name in reached and name not in cut.inputs] if cut.inputs else []
    if missing:
        reason = "the part also needs this input of the model"
        remedy = f"--inputs {','.join([*cut.inputs, *missing])}"
        raise ModelError("E109", reason, tensor=missing[0], remedy=remedy)
    inner = onnx.shape_inference.infer_shapes(found).graph if cut.inputs or cut.outputs else graph
    types = {each.name: each for each in (*inner.value_info, *inner.input, *inner.output)}
    nodes = [
        node for node in graph.node if any(name in reached and name not in cut.inputs for name in node.output)
    ]
    read = {name for node in nodes for name in all_inputs(node)}
    inputs = [name for name in cut.inputs or own if name in reached]
    parts: Mapping[str, Sequence[Any]] = {
        "node": nodes,
        "initializer": [_embed(each, model.parent) for each in graph.initializer if each.name in read],
        "value_info": [each for each in graph.value_info if each.name in read and each.name not in inputs],
        "input": [_type_of(name, types) for name in inputs],
        "output": [_type_of(name, types) for name in outputs],
    }
    copies = {field: [type(each).FromString(each.SerializeToString()) for each in parts[field]] for field in parts}
    for field, entries in copies.items():
        graph.ClearField(field)
        getattr(graph, field).extend(entries)
    return found


def _expect_known(names: Sequence[str], known: Collection[str], option: str) -> None:
    for name in names:
        if name not in known:
            reason = f"{option} names a tensor that no node of the model's graph computes.{closest(name, known)}"
            raise ModelError("E109", reason, tensor=name, remedy="give names of tensors, not of nodes or weights")


def _reach(outputs: Sequence[str], inputs: Collection[str], producers: Mapping[str, onnx.NodeProto]) -> set[str]:
    """Every tensor that the outputs depend on, up to the inputs."""
    found: set[str] = set()
    waiting = [*outputs]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name in producers and name not in inputs:
            waiting += all_inputs(producers[name])
    return found


def _type_of(name: str, types: Mapping[str, onnx.ValueInfoProto]) -> onnx.ValueInfoProto:
    if name not in types:
        reason = "the type of this tensor is not known"
        remedy = "simplify the model, or run ONNX's shape inference"
        raise ModelError("E109", reason, tensor=name, remedy=remedy)
    return types[name]


def _embed(tensor: onnx.TensorProto, folder: Path) -> onnx.TensorProto:
    """The constant with its data in the model."""
    from onnx import numpy_helper

    return numpy_helper.from_array(array_of(tensor, folder), tensor.name) if tensor.data_location else tensor
