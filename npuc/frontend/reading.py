"""Reads a model file, and checks it before its nodes are processed."""

from __future__ import annotations

from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from npuc.errors import ModelError
from npuc.frontend.dynamic import without_dynamic_quantisation
from npuc.frontend.plain_forms import steps_first
from npuc.frontend.upgrading import OLDEST_OPSET, ONNX_DOMAINS, is_old, upgrade
from npuc.frontend.widening import widen_model
from npuc.onnx_files.external_data import array_of
from npuc.onnx_files.subgraphs import inner_tensors, nodes_in, tensor_names, tensors
from npuc.onnx_files.wire import split_weights
from npuc.storage.mapped import HEAVY
from npuc.system.budget import content, expect_room, take
from npuc.text.escaping import Names

NEWEST_OPSET = onnx.defs.onnx_opset_version()


def read_model(path: Path, *, whole: bool = True) -> onnx.ModelProto:
    """The parsed file, without its external data; an old opset is converted to 7 by ONNX's converter.

    A network in half precision, or quantised dynamically, is returned in float32 (`widening`, `dynamic`),
    recurrent operators with the steps first (`batches`). Arguments and errors as those of `parse_model`.
    """
    return steps_first(without_dynamic_quantisation(widen_model(upgrade(parse_model(path, whole=whole)))))


def parse_model(path: Path, *, whole: bool = True) -> onnx.ModelProto:
    """The parsed file as it is, without the external data of its initialisers; that of others is in the model.

    whole: if false, heavy constants may be left in the file, which the model then refers to as external data.
    Raises ModelError: E101 if the file cannot be read, E102 if it is not an ONNX model, E108 for external data.
    """
    light = None if whole else _light(path)
    model = _whole(path) if light is None else light
    for tensor in [each for each in inner_tensors(model) if each.data_location]:
        value = numpy_helper.from_array(array_of(tensor, path.parent), tensor.name)
        take(value.ByteSize(), "a constant", tensor=tensor.name)
        tensor.CopyFrom(value)
    _name_parts(model.graph)
    return model


def _name_parts(graph: onnx.GraphProto) -> None:
    """Names the parts of every Split that nothing reads: onnxruntime crashes on absent ones."""
    splits = [each for each in nodes_in(graph.node) if each.op_type == "Split" and not all(each.output)]
    names = Names(tensor_names(graph) if splits else ())
    for each in splits:
        each.output[:] = [name or names.new(f"{each.name or each.op_type}/unread") for name in each.output]


def _light(path: Path) -> onnx.ModelProto | None:
    """The model without its heavy constants; None if it has none, or if all of it is needed.

    ONNX's converter and inliner need all of it. Errors in the file are found when it is read whole.
    """
    try:
        inside = path.resolve().parent == path.parent.resolve()  # data behind a link would lie outside the folder
        if not inside or not path.is_file() or path.stat().st_size < HEAVY:
            return None
        expect_room(path.stat().st_size, f"'{path}'")
        with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as mapped:
            light, spans = split_weights(mapped, path.name)
        model = onnx.ModelProto.FromString(light)
    except (OSError, ValueError, DecodeError):
        return None
    needed = model.functions or is_old(model) or not model.graph.output
    return model if spans and not needed else None


def _whole(path: Path) -> onnx.ModelProto:
    try:
        data = content(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError("E101", f"{path}: {reason}", remedy="give the path of an .onnx file") from error
    if not data:
        raise ModelError("E102", f"{path} is empty")
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        remedy = "the file may be cut off; export or download it again"
        raise ModelError("E102", f"{path} is not a complete ONNX model", remedy=remedy) from error
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError("E102", f"{path} holds no ONNX graph", remedy="give the path of an .onnx file")
    return model


def files_with_data(path: Path) -> list[Path]:
    """The model's file and those of its external data. Raises ModelError as `read_model`."""
    model = _light(path) or _whole(path)
    places = {entry.value for each in tensors(model) for entry in each.external_data if entry.key == "location"}
    return [path, *(path.parent / place for place in sorted(places))]


def check_names(graph: onnx.GraphProto) -> None:
    """Raises ModelError (E102) if a name is not UTF-8, which protobuf returns as bytes."""
    for name in _names(graph):
        if not isinstance(name, str):
            raise ModelError("E102", f"the model is damaged: the name {name!r} is not UTF-8")


def _names(graph: onnx.GraphProto) -> Iterator[object]:
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _names(attribute.g)
    yield from (graph.name, *(tensor.name for tensor in graph.initializer))
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators that the model uses.

    Raises ModelError (E103) outside OLDEST_OPSET..NEWEST_OPSET, or if there is not exactly one.
    """
    versions = {each.version for each in model.opset_import if each.domain in ONNX_DOMAINS}
    limit = f"opset {OLDEST_OPSET} to {NEWEST_OPSET}"
    if len(versions) != 1:
        found = ", ".join(map(str, sorted(versions))) or "none"
        raise ModelError("E103", f"the model names {len(versions)} ONNX opsets ({found})", limit=limit)
    (version,) = versions
    if not OLDEST_OPSET <= version <= NEWEST_OPSET:
        remedy = f"convert the model with onnx.version_converter, for instance to opset {min(17, NEWEST_OPSET)}"
        raise ModelError("E103", f"the model uses opset {version}", limit=limit, remedy=remedy)
    return version
