"""The host regions of a program as C: npuc_regions.h and .c, one function a region, and the library they call.

A region whose operators the library has is complete. Any other is declared, for the application to supply; its
ONNX model lies beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from npuc import c_text
from npuc.allocation import Buffer, allocate, peak
from npuc.c_text import array, floating
from npuc.errors import ArtefactError, NpucError
from npuc.escaping import c_comment
from npuc.frontend import import_model
from npuc.ir import Array, Graph
from npuc.program import Program
from npuc.regions.artefact import Contents, Step
from npuc.regions.export.operators_c import C_TYPES, Writer, emitted

SOURCES = Path(__file__).parent / "c"
TYPES = {
    "float32": "NPUC_REGION_FLOAT32", "float64": "NPUC_REGION_FLOAT64", "int8": "NPUC_REGION_INT8",
    "uint8": "NPUC_REGION_UINT8", "int16": "NPUC_REGION_INT16", "uint16": "NPUC_REGION_UINT16",
    "int32": "NPUC_REGION_INT32", "int64": "NPUC_REGION_INT64", "bool": "NPUC_REGION_BOOL",
}  # fmt: skip
TITLE = "/* What the host computes. Written by npuc. */"
A_LINE = 8
MOST_BYTES = 1 << 28
"""Of constants and results within a region; beyond, it is left to the application."""

INTRODUCTION = """/*
 * The host regions of a program, in the order of steps.json. A region between parts of the NPU takes and gives
 * float32 tensors, row by row; `data` of each has the alignment of its type, and no two of a call overlap.
 * Regions of npuc_regions.c keep their results in static memory: one call at a time.
 */"""


@dataclass(frozen=True)
class RegionSource:
    """A region: the text of its function, None where the library lacks an operator, and what the header says."""

    name: str
    text: str | None
    comment: str


def exported(program: Program) -> dict[str, bytes]:
    """npuc_regions.h, npuc_regions.c and the library, by path; nothing for a program without regions."""
    steps = [step for step in Contents.of(program.manifest).steps if step.kind == "host"]
    if not steps:
        return {}
    found = [region(program.files[step.path], number, step) for number, step in enumerate(steps)]
    return sources(found)


def sources(
    found: Sequence[RegionSource], kind: str = "regions", introduction: str = INTRODUCTION
) -> dict[str, bytes]:
    """The files of these regions, npuc_KIND.h and .c and the library, by path."""
    files = {path.name: path.read_bytes() for path in sorted(SOURCES.iterdir()) if path.suffix in (".c", ".h")}
    header, source = _header(found, kind, introduction), _source(found, kind)
    return {**files, f"npuc_{kind}.h": header.encode(), f"npuc_{kind}.c": source.encode()}


def region(data: bytes, number: int, step: Step, kind: str = "regions") -> RegionSource:
    """A region of the program. data: its ONNX model. Raises ArtefactError (E502) where that is damaged.

    kind: what the file and, without its s, the function are named after.
    """
    prefix = f"{kind[:-1]}_{number}"
    try:
        model = onnx.ModelProto.FromString(data)
    except DecodeError:
        reason = f"'{step.path}': it is not an ONNX model"
        raise ArtefactError("E502", reason, remedy="compile the model again") from None
    try:
        graph = import_model(model, None)
    except NpucError:
        graph = None
    text = _function(graph, step, prefix) if graph is not None else None
    who = f"computed by npuc_{kind}.c" if text is not None else "YOURS: supply this function"
    return RegionSource(f"npuc_host_{prefix}", text, _comment(model, step, who))


def _comment(model: onnx.ModelProto, step: Step, who: str) -> str:
    """What a region computes: its operators, and the tensors that it takes and gives."""
    operators = ", ".join(dict.fromkeys(node.op_type for node in model.graph.node))
    types = {each.name: each.type for each in (*model.graph.input, *model.graph.output)}
    lines = [f"{step.path}, {who}. {len(model.graph.node)} nodes: {operators}."]
    for role, names in (("in", step.inputs), ("out", step.outputs)):
        lines += [f"{role}[{at}]: {_type(types.get(name))} {name}" for at, name in enumerate(names)]
    lines.append("Gives 0, or an error of your own.")
    return "\n".join(map(c_comment, lines))


def _type(found: onnx.TypeProto | None) -> str:
    """Element type and shape, as a comment has them."""
    if found is None or not found.HasField("tensor_type"):
        return "a value that is no tensor:"
    if found.tensor_type.elem_type not in TensorProto.DataType.values():
        return "a value of a type that ONNX lacks:"
    dims = found.tensor_type.shape.dim
    shape = ", ".join(str(each.dim_value) if each.HasField("dim_value") else "?" for each in dims)
    return f"{TensorProto.DataType.Name(found.tensor_type.elem_type).lower()} [{shape}]"


def _function(graph: Graph, step: Step, prefix: str) -> str | None:
    """The function of a region with its tables, or None where the library lacks something."""
    if any(each.dtype not in C_TYPES for each in graph.tensors.values()):
        return None
    used = {name for node in graph.nodes for name in node.inputs}
    constants = {name: value for name, value in graph.constants.items() if name in used}
    if sum(value.nbytes for value in constants.values()) > MOST_BYTES or _direct(graph):
        return None
    places = {name: f"{prefix}_constant_{at}" for at, name in enumerate(constants)}
    for role, names in (("in", step.inputs), ("out", step.outputs)):
        for at, name in enumerate(names):
            if name in graph.tensors:
                const = "const " if role == "in" else ""
                places[name] = f"({const}{C_TYPES[graph.tensors[name].dtype]} *){role}[{at}].data"
    storage = _storage(graph, prefix, places)
    if storage is None:
        return None
    to = Writer(graph, prefix, places)
    if not all(emitted(to, node) for node in graph.nodes):
        return None
    named = set(re.findall(r"\w+", " ".join(to.statements)))  # scales and zeros are numbers in the calls
    tables = [constant(places[name], value) for name, value in constants.items() if places[name] in named]
    unused = [f"(void){role};" for role, names in (("in", graph.inputs), ("out", graph.outputs)) if not names]
    body = "".join(f"    {line}\n" for line in (*unused, *to.statements))
    head = f"int npuc_host_{prefix}(const npuc_tensor *in, npuc_tensor *out)"
    return "".join([*tables, storage, *to.tables, f"{head}\n{{\n{body}    return 0;\n}}\n\n"])


def _direct(graph: Graph) -> bool:
    """Whether an output is an input or a constant, which no node writes."""
    written = {name for node in graph.nodes for name in node.outputs}
    return any(name not in written for name in graph.outputs)


def _storage(graph: Graph, prefix: str, places: dict[str, str]) -> str | None:
    """The static memory of results within the region, which share it by lifetime; adds their places."""
    alive: dict[str, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        for name in (*node.inputs, *node.outputs):
            if name and name not in places:
                alive.setdefault(name, []).append(number)
    words = {name: -(-_bytes(graph, name) // 8) for name in alive}
    buffers = [Buffer(name, words[name], numbers[0], numbers[-1]) for name, numbers in alive.items()]
    addresses = allocate(buffers)
    size = peak(buffers, addresses)
    if size * 8 > MOST_BYTES:
        return None
    for name, address in addresses.items():
        places[name] = f"({C_TYPES[graph.tensors[name].dtype]} *)({prefix}_memory + {address})"
    return f"static uint64_t {prefix}_memory[{size}];\n\n" if size else ""


def _bytes(graph: Graph, name: str) -> int:
    found = graph.tensors[name]
    return found.size * np.dtype(found.dtype).itemsize


def constant(name: str, value: Array) -> str:
    """A table of a constant's elements."""
    texts = [floating(each) if value.dtype == np.float32 else _number(each) for each in value.ravel().tolist()]
    rows = (", ".join(texts[start : start + A_LINE]) for start in range(0, len(texts), A_LINE))
    return array(C_TYPES[str(value.dtype)], name, rows)


def _number(value: float) -> str:
    """A number of a type other than float32; int64's least has no literal of its own."""
    if isinstance(value, float):
        return {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}.get(repr(value), repr(value))
    if isinstance(value, bool):
        return str(int(value))
    return "INT64_MIN" if value == -(2**63) else str(value)


def _header(found: Sequence[RegionSource], kind: str, introduction: str) -> str:
    types = ", ".join(TYPES.values())
    definitions = [
        f"enum npuc_region_type {{ {types} }};",
        "",
        "typedef struct npuc_region_tensor {",
        "    const char *name;",
        "    enum npuc_region_type type;",
        "    uint32_t rank;",
        "    const uint32_t *shape;",
        "    void *data;",
        "} npuc_tensor;",
    ]
    declarations = [
        f"{each.comment}\nint {each.name}(const npuc_tensor *in, npuc_tensor *out);\n" for each in found
    ]
    return c_text.header(introduction, f"NPUC_{kind.upper()}_H", "npuc_operators.h", definitions, declarations)


def _source(found: Sequence[RegionSource], kind: str) -> str:
    texts: Iterable[str] = (each.text for each in found if each.text is not None)
    head = f'{TITLE}\n#include "npuc_{kind}.h"\n\n#include <math.h>\n\n'
    return head + "".join(texts)
