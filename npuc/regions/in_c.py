"""The host regions of a program as C: npuc_regions.h and .c, one function per region, and the library they call.

For a region that the library cannot compute, its ONNX model is added.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto

from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.host_c import functions
from npuc.host_c.functions import FunctionSignature, HostFunction, function
from npuc.program import Program
from npuc.regions.artefact import Contents, ProgramPart, host_model

INTRODUCTION = """/*
 * The host regions of a program, in the order of steps.json. A region between parts of the NPU takes and gives
 * float32 tensors, row by row; `data` of each has the alignment of its type, and no two of a call overlap.
 * Regions of npuc_regions.c keep their results in static memory: one call at a time.
 */"""


def exported(program: Program) -> dict[str, bytes]:
    """npuc_regions.h, npuc_regions.c and the library, by path; nothing for a program without regions."""
    steps = [step for step in Contents.of(program.manifest).steps if step.kind == "host"]
    if not steps:
        return {}
    return sources([region(program.files[step.path], number, step) for number, step in enumerate(steps)])


def sources(found: Sequence[HostFunction]) -> dict[str, bytes]:
    """The files of these regions, by path."""
    return functions.sources(found, "regions", INTRODUCTION)


def region(data: bytes, number: int, step: ProgramPart) -> HostFunction:
    """A region of the program. data: its ONNX model. Raises ArtefactError (E502) if that is damaged."""
    model = host_model(step.path, data)
    try:
        graph = import_model(model, None)
    except NpucError:
        graph = None
    known = {each.name: each.type for each in (*model.graph.input, *model.graph.output)}
    types = tuple(_type(known.get(name)) for name in (*step.inputs, *step.outputs))
    operators = [node.op_type for node in model.graph.node]
    return function(
        graph, FunctionSignature(step.inputs, step.outputs, types), "regions", number, step.path, operators
    )


def _type(found: onnx.TypeProto | None) -> str:
    """Element type and shape as text for a comment."""
    if found is None or not found.HasField("tensor_type"):
        return "a value that is no tensor:"
    if found.tensor_type.elem_type not in TensorProto.DataType.values():
        return "a value of a type that ONNX lacks:"
    dims = found.tensor_type.shape.dim
    shape = ", ".join(str(each.dim_value) if each.HasField("dim_value") else "?" for each in dims)
    return f"{TensorProto.DataType.Name(found.tensor_type.elem_type).lower()} [{shape}]"
