"""Host nodes as C: one function each, of calls of the library c/npuc_operators.h.

A function is complete if the library has all its operators. Otherwise it is only declared, for the application to
implement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

from npuc.frozen import frozen
from npuc.host import c_text
from npuc.host.allocation import Buffer, allocate, peak
from npuc.host.c_text import array, elements, floating, initialiser
from npuc.host.copies import MOVES, Copy, copies_of, copy_between
from npuc.images.description import Description
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import (
    ACTIVATION,
    APPROXIMATE,
    AXES,
    AXIS,
    ELU_ALPHA,
    HARD_ALPHA,
    HARD_BETA,
    LEAKY_ALPHA,
    LRN_ALPHA,
    LRN_BETA,
    LRN_BIAS,
    MAX,
    MIN,
    SELECT_LAST_INDEX,
    SIZE,
    SWISH_ALPHA,
)
from npuc.program import Program
from npuc.storage.records import read
from npuc.text.escaping import c_comment

C_TYPES = {
    "float32": "float", "float64": "double", "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t",
    "uint16": "uint16_t", "int32": "int32_t", "int64": "int64_t", "bool": "uint8_t",
}  # fmt: skip
MOST_RANK = 8
"""NPUC_RANK of the library."""


def parameters(program: Program) -> tuple[list[str], list[str]]:
    """The parameters of an inference, inputs first: names, frames by what they are, and their declarations.

    program: also one part of several, which may not have the images of the whole.
    """
    images = read(tuple[Description, ...], program.manifest.get("images", []), "images")
    frames = {each.input for each in images if each.fused}
    found = [
        (f"{'frame' if port.name in frames else 'input'}_{at}", f"const {C_TYPES[port.dtype]}")
        for at, port in enumerate(program.inputs)
    ]
    found += [(f"output_{at}", C_TYPES[port.dtype]) for at, port in enumerate(program.outputs)]
    return [name for name, _ in found], [f"{kind} *{name}" for name, kind in found]


@dataclass
class CallWriter:
    """Calls of the library for host nodes so far: statements, and the tables that precede their function."""

    graph: Graph
    """It has the types of all tensors, and the constants."""
    prefix: str
    places: Mapping[str, str]
    """The C expression of every tensor's first element."""
    tables: list[str] = field(default_factory=list[str])
    statements: list[str] = field(default_factory=list[str])

    def shape(self, name: str) -> tuple[int, ...]:
        """Extents of a tensor."""
        return self.graph.shape(name)

    def floats(self, *names: str) -> bool:
        """Whether all of these are float32."""
        return all(self.graph.tensors[name].dtype == "float32" for name in names)

    def axes(self, rows: Sequence[tuple[int, int, int]]) -> str:
        """A table of extents and strides, and its length: two arguments of a call."""
        kept = [row for row in rows if row[0] != 1] or [(1, 0, 0)]
        name = f"{self.prefix}_axes_{len(self.tables)}"
        self.tables.append(array("struct npuc_op_axis", name, map(initialiser, kept)))
        return f"{name}, {len(kept)}"

    def numbers(self, values: Sequence[float]) -> str:
        """A table of float parameters, or no table."""
        if not values:
            return "0"
        name = f"{self.prefix}_numbers_{len(self.tables)}"
        self.tables.append(array("float", name, [", ".join(map(floating, values))]))
        return name

    def call(self, function: str, *arguments: object, fails: bool = False) -> None:
        """Adds a call; fails: whether it returns an error that the region passes on."""
        text = f"npuc_op_{function}({', '.join(map(str, arguments))})"
        self.statements.append(f"if ({text}) return -1;" if fails else f"{text};")

    def copy(self, copy: Copy, x: str, y: str) -> None:
        """Adds a strided copy."""
        axes = self.axes([(axis.extent, axis.source, axis.target) for axis in copy.axes])
        self.call("copy", self.places[y], self.places[x], copy.piece, copy.target, copy.source, axes)

    def emit(self, node: Node) -> bool:
        """Adds the computation of a node. False if the library lacks the operator, or this form of it."""
        names = [name for name in (*node.inputs, *node.outputs) if name]
        types = [self.graph.tensors[name] for name in names]
        fits = all(0 < each.size < 1 << 28 and len(each.shape) <= MOST_RANK for each in types)
        rule = RULES.get(node.op)
        return fits and rule is not None and not ACTIVATION(node) and rule(self, node)


Emit = Callable[[CallWriter, Node], bool]
"""Adds the computation of a node; False if the library does not support it."""


def _unary(to: CallWriter, node: Node) -> bool:
    function, numbers = UNARY[node.op]
    x = node.inputs[0]
    if not to.floats(x, node.output):
        return False
    name = "gelu_tanh" if node.op == "Gelu" and APPROXIMATE(node) == "tanh" else function
    count = to.graph.tensors[x].size
    to.call("map", to.places[node.output], to.places[x], count, f"npuc_op_{name}", to.numbers(numbers(node)))
    return True


def _steps(shape: Sequence[int], result: Sequence[int]) -> list[int]:
    """Strides in elements along the axes of the result: 0 where the tensor is broadcast."""
    aligned = (1,) * (len(result) - len(shape)) + tuple(shape)
    return [0 if extent == 1 else prod(aligned[axis + 1 :]) for axis, extent in enumerate(aligned)]


def _binary(to: CallWriter, node: Node) -> bool:
    if len(node.inputs) != 2 or not to.floats(*node.inputs, node.output):
        return False
    result = to.shape(node.output)
    steps = [_steps(to.shape(name), result) for name in node.inputs]
    axes = to.axes(list(zip(result, *steps, strict=True)))
    operands = [to.places[name] for name in node.inputs]
    to.call("combine", to.places[node.output], *operands, axes, f"npuc_op_{BINARY[node.op]}")
    return True


def _reduce(to: CallWriter, node: Node) -> bool:
    x = node.inputs[0]
    if not to.floats(x, node.output):
        return False
    shape, axes = to.shape(x), AXES(node)
    steps = _steps(shape, shape)
    outer, inner = (
        to.axes([(shape[axis], steps[axis], 0) for axis in range(len(shape)) if (axis in axes) == inside])
        for inside in (False, True)
    )
    kind = f"NPUC_OP_{node.op.removeprefix('Reduce').upper()}"
    to.call("reduce", to.places[node.output], to.places[x], outer, inner, kind)
    return True


def _along(to: CallWriter, node: Node, axis: int, *parameters: object) -> bool:
    """An operator along one axis of a float tensor, or of several rows."""
    x, shape = node.inputs[0], to.shape(node.inputs[0])
    extents = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    to.call(ALONG[node.op], to.places[node.output], to.places[x], *extents, *parameters)
    return to.floats(x)


def _softmax(to: CallWriter, node: Node) -> bool:
    return _along(to, node, AXIS(node))


def _arg_max(to: CallWriter, node: Node) -> bool:
    return _along(to, node, AXIS(node), int(SELECT_LAST_INDEX(node)))


def _lrn(to: CallWriter, node: Node) -> bool:
    size, factor = SIZE(node), LRN_ALPHA(node) / SIZE(node)
    numbers = map(floating, (factor, LRN_BETA(node), LRN_BIAS(node)))
    return _along(to, node, 1, (size - 1) // 2, size // 2, *numbers)


def _matmul(to: CallWriter, node: Node) -> bool:
    left, right = (to.shape(name) for name in node.inputs)
    if not to.floats(*node.inputs, node.output):
        return False
    batch = to.shape(node.output)[:-2]
    rows, inner, columns = left[-2], left[-1], right[-1]
    steps = [
        [step * size for step in _steps(shape[:-2], batch)]
        for shape, size in ((left, rows * inner), (right, inner * columns))
    ]
    axes = to.axes(list(zip(batch, *steps, strict=True)))
    operands = [to.places[name] for name in node.inputs]
    to.call("matmul", to.places[node.output], *operands, axes, rows, inner, columns)
    return True


def _move(to: CallWriter, node: Node) -> bool:
    for x, y, copy in copies_of(node, to.graph.tensors):
        to.copy(copy, x, y)
    return True


def _expand(to: CallWriter, node: Node) -> bool:
    x: Array = np.empty(to.shape(node.inputs[0]), to.graph.tensors[node.inputs[0]].dtype)
    y: Array = np.empty(to.shape(node.output), x.dtype)
    to.copy(copy_between(np.broadcast_to(x, y.shape), x, y, y), node.inputs[0], node.output)
    return True


def _gather(to: CallWriter, node: Node) -> bool:
    x, indices = node.inputs
    if to.graph.tensors[indices].dtype != "int64":
        return False
    shape, axis = to.shape(x), AXIS(node)
    size = prod(shape[axis + 1 :]) * np.dtype(to.graph.tensors[x].dtype).itemsize
    count = to.graph.tensors[indices].size
    places = (to.places[node.output], to.places[x])
    to.call("gather", *places, prod(shape[:axis]), shape[axis], size, to.places[indices], count, fails=True)
    return True


def _quantise(to: CallWriter, node: Node) -> bool:
    """QuantizeLinear and DequantizeLinear with a single scale, constant like the zero point."""
    x, y = node.inputs[0], node.output
    given = [name for name in node.inputs[1:] if name]
    integers = y if node.op == "QuantizeLinear" else x
    dtype = to.graph.tensors[integers].dtype
    floats = (x if node.op == "QuantizeLinear" else y, given[0])
    if dtype not in ("int8", "uint8", "int16") or not to.floats(*floats):
        return False
    if any(name not in to.graph.constants or to.graph.constants[name].size != 1 for name in given):
        return False
    scale = floating(float(to.graph.constants[given[0]].reshape(-1)[0]))
    zero = int(to.graph.constants[given[1]].reshape(-1)[0]) if len(given) > 1 else 0
    name = f"{'quantize' if node.op == 'QuantizeLinear' else 'dequantize'}_{dtype}"
    to.call(name, to.places[y], to.places[x], to.graph.tensors[x].size, scale, zero)
    return True


def _none(_node: Node) -> Sequence[float]:
    return ()


PLAIN = (
    "Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Softplus", "Softsign", "Mish", "Gelu", "Exp", "Log", "Erf", "Sqrt",
    "Reciprocal", "Floor", "Ceil", "Round",
)  # fmt: skip
UNARY: Mapping[str, tuple[str, Callable[[Node], Sequence[float]]]] = {
    **{
        op: (op.lower(), _none) for op in ("Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Softplus", "Softsign", "Mish")
    },
    **{
        op: (op.lower(), _none)
        for op in ("Gelu", "Exp", "Log", "Erf", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round")
    },
    "HardSwish": ("hard_swish", _none),
    "HardSigmoid": ("hard_sigmoid", lambda node: (HARD_ALPHA(node), HARD_BETA(node))),
    "Swish": ("swish", lambda node: (SWISH_ALPHA(node),)),
    "Elu": ("elu", lambda node: (ELU_ALPHA(node),)),
    "LeakyRelu": ("leaky_relu", lambda node: (LEAKY_ALPHA(node),)),
    "Clip": ("clip", lambda node: (MIN(node), MAX(node))),
}
ALONG = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "ArgMax": "argmax", "LRN": "lrn"}
BINARY = {op: op.lower() for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu")}
RULES: Mapping[str, Emit] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "ArgMax": _arg_max,
    "LRN": _lrn,
    **dict.fromkeys(MOVES, _move),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantise),
    "MatMul": _matmul,
    "Expand": _expand,
    "Gather": _gather,
}
"""The operators of the library."""


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
    to = CallWriter(graph, prefix, places)
    if not all(map(to.emit, graph.nodes)):
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
