"""Host nodes as C: one function each, and the library npuc_operators.c that they call.

A function is complete if the library has all its operators. Otherwise it is only declared, for the application to
implement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from npuc.allocation import Buffer, allocate, peak
from npuc.export import c_text
from npuc.export.c_text import array, elements
from npuc.frozen import frozen
from npuc.host_c.operators import C_TYPES, RegionWriter, emitted
from npuc.ir import Array, Graph
from npuc.text.escaping import c_comment

SOURCES = Path(__file__).parent / "c"
TYPES = {
    "float32": "NPUC_REGION_FLOAT32", "float64": "NPUC_REGION_FLOAT64", "int8": "NPUC_REGION_INT8",
    "uint8": "NPUC_REGION_UINT8", "int16": "NPUC_REGION_INT16", "uint16": "NPUC_REGION_UINT16",
    "int32": "NPUC_REGION_INT32", "int64": "NPUC_REGION_INT64", "bool": "NPUC_REGION_BOOL",
}  # fmt: skip
TITLE = "/* What the host computes. Written by npuc. */"
A_LINE = 8
MOST_BYTES = 1 << 28
"""The most bytes of constants and results in a function; larger ones are left to the application."""


@frozen
class HostFunction:
    """A host function: its text, None if the library lacks an operator, and its description in the header."""

    name: str
    text: str | None
    comment: str


@frozen
class FunctionSignature:
    """Inputs and outputs of a function in order: tensors by name, with their types as text for a comment."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: tuple[str, ...]
    """Types of the inputs, then of the outputs."""


def function(
    graph: Graph | None, signature: FunctionSignature, kind: str, number: int, title: str, operators: Sequence[str]
) -> HostFunction:
    """A function for npuc_KIND.c. graph: None if it is unknown how to compute it.

    title: a description for the comment; operators: of all nodes.
    """
    prefix = f"{kind[:-1]}_{number}"
    text = None if graph is None else _function(graph, signature, prefix)
    who = f"computed by npuc_{kind}.c" if text is not None else "YOURS: supply this function"
    lines = [f"{title}, {who}. {len(operators)} nodes: {', '.join(dict.fromkeys(operators))}."]
    types = iter(signature.types)
    for role, names in (("in", signature.inputs), ("out", signature.outputs)):
        lines += [f"{role}[{at}]: {next(types)} {name}" for at, name in enumerate(names)]
    lines.append("Gives 0, or an error of your own.")
    return HostFunction(f"npuc_host_{prefix}", text, "\n".join(map(c_comment, lines)))


def sources(found: Sequence[HostFunction], kind: str, introduction: str) -> dict[str, bytes]:
    """The files of these functions, npuc_KIND.h and .c and the library, by path."""
    header, source = _header(found, kind, introduction), _source(found, kind)
    return {**c_text.sources(SOURCES), f"npuc_{kind}.h": header.encode(), f"npuc_{kind}.c": source.encode()}


def _function(graph: Graph, signature: FunctionSignature, prefix: str) -> str | None:
    """The text of a function with its tables, or None if the library lacks something."""
    if any(each.dtype not in C_TYPES for each in graph.tensors.values()):
        return None
    used = {name for node in graph.nodes for name in node.inputs}
    constants = {name: value for name, value in graph.constants.items() if name in used}
    if sum(value.nbytes for value in constants.values()) > MOST_BYTES or _direct(graph):
        return None
    places = {name: f"{prefix}_constant_{at}" for at, name in enumerate(constants)}
    for role, names in (("in", signature.inputs), ("out", signature.outputs)):
        for at, name in enumerate(names):
            if name in graph.tensors:
                const = "const " if role == "in" else ""
                places[name] = f"({const}{C_TYPES[graph.tensors[name].dtype]} *){role}[{at}].data"
    storage = _storage(graph, prefix, places)
    if storage is None:
        return None
    to = RegionWriter(graph, prefix, places)
    if not all(emitted(to, node) for node in graph.nodes):
        return None
    named = set(re.findall(r"\w+", " ".join(to.statements)))  # scales and zero points are numbers in the calls
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
    """Static memory for results within the function, shared by lifetime; adds their places."""
    alive: dict[str, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        for name in (*node.inputs, *node.outputs):
            if name and name not in places:
                alive.setdefault(name, []).append(number)
    words = {name: -(-graph.tensors[name].bytes // 8) for name in alive}
    buffers = [Buffer(name, words[name], numbers[0], numbers[-1]) for name, numbers in alive.items()]
    addresses = allocate(buffers)
    size = peak(buffers, addresses)
    if size * 8 > MOST_BYTES:
        return None
    for name, address in addresses.items():
        places[name] = f"({C_TYPES[graph.tensors[name].dtype]} *)({prefix}_memory + {address})"
    return f"static uint64_t {prefix}_memory[{size}];\n\n" if size else ""


def constant(name: str, value: Array) -> str:
    """A table with a constant's elements."""
    return array(C_TYPES[str(value.dtype)], name, elements(value, A_LINE))


def _header(found: Sequence[HostFunction], kind: str, introduction: str) -> str:
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


def _source(found: Sequence[HostFunction], kind: str) -> str:
    texts: Iterable[str] = (each.text for each in found if each.text is not None)
    head = f'{TITLE}\n#include "npuc_{kind}.h"\n\n#include <math.h>\n\n'
    return head + "".join(texts)
