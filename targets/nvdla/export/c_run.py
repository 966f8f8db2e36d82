"""The whole inference in C: npuc_run.c plays the segments and computes the host steps between them.

Consecutive host steps become one function of npuc_steps.c, built on the library of npuc.host.c_code; a step that
the library cannot compute is only declared, for the application to supply.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from npuc.host import c_text
from npuc.host.c_code import C_TYPES, TYPES, FunctionSignature, HostFunction, constant, function, sources
from npuc.host.c_text import listed
from npuc.host.step import CONSTANT, HostStep, consistent
from npuc.ir import Array, Node, TensorType, type_of
from npuc.ops import build
from npuc.program import Program
from npuc.targets.nvdla.formats.precision import HOST_DTYPES
from npuc.targets.nvdla.program.artefact import Contents, Segment, TensorMove
from npuc.text.escaping import c_comment, c_string

STEPS = "steps"
INTRODUCTION = """/*
 * What the host computes before, between and behind segments, in order. `data` of a tensor has the alignment of
 * its type, and no two of a call overlap. Functions of npuc_steps.c keep results in static memory: one call at a
 * time.
 */"""
DECLARATION = """/* Runs the program once: fills its memory, plays segments, computes the host's steps. Gives 0, or
 * the first error of a hook or a step. inputs and outputs: the network's, in order, row by row. One call at a
 * time. */
int npuc_run(uint8_t *memory, const struct npuc_hooks *hooks, void *const *inputs, void *const *outputs);"""
BEGIN = """int npuc_run(uint8_t *memory, const struct npuc_hooks *hooks, void *const *inputs, void *const *outputs)
{
    int failed;

"""


def files(program: Program, title: str) -> dict[str, bytes]:
    """npuc_run.h and .c, the host steps, and the library that they call, by path.

    Raises ArtefactError (E502) for a damaged program.
    """
    run = _Run(program)
    header = c_text.header(title, "NPUC_RUN_H", "npuc_program.h", (), (DECLARATION,))
    steps = sources(run.functions, STEPS, INTRODUCTION)
    return {**steps, "npuc_run.h": header.encode(), "npuc_run.c": "\n".join([title, run.text]).encode()}


class _Run:
    """The statements of npuc_run, and the tensors passed between them."""

    def __init__(self, program: Program) -> None:
        self.types = {each.name: TensorType(each.shape, each.dtype) for each in program.inputs}
        self.places = {each.name: f"inputs[{at}]" for at, each in enumerate(program.inputs)}
        self.results = {each.name: f"outputs[{at}]" for at, each in enumerate(program.outputs)}
        self.constants: dict[str, Array] = {}
        self.tables: list[str] = []
        self.statements = ["npuc_fill(npuc_blobs, NPUC_BLOBS, memory, NPUC_DRAM_BYTES);"]
        self.functions: list[HostFunction] = []
        self.segments = 0
        parts = _parts(program)
        for at, part in enumerate(parts):
            if isinstance(part, Segment):
                self._segment(part)
            else:
                self._steps(part, {*self.results, *(name for each in parts[at + 1 :] for name in _read(each))})
        for name, place in self.results.items():
            if self._place(name) != place:
                self.statements.append(f"memcpy({place}, {self._place(name)}, {self.types[name].bytes}u);")

    @property
    def text(self) -> str:
        """npuc_run.c without its title."""
        body = "".join(f"    {line}\n" if line else "\n" for line in self.statements)
        used = {"inputs": "inputs[", "outputs": "outputs[", "hooks": "hooks)"}
        unused = "".join(f"    (void){argument};\n" for argument, text in used.items() if text not in body)
        includes = '#include "npuc_run.h"\n\n#include "npuc_steps.h"\n\n#include <math.h>\n#include <string.h>\n\n'
        return "".join([includes, *self.tables, BEGIN, unused, body, "    return 0;\n}\n"])

    def _place(self, name: str) -> str:
        """The C expression of a tensor's first element; a constant becomes a table when first used."""
        if name not in self.places:
            self.places[name] = f"constant_{len(self.tables)}"
            self.tables.append(constant(self.places[name], self.constants[name]))
        return self.places[name]

    def _written(self, name: str, kind: TensorType) -> str:
        """The C expression of a tensor about to be computed: an output, or a static array of its own."""
        self.types[name] = kind
        if name not in self.places:
            own = f"tensor_{sum(table.startswith('/*') for table in self.tables)}"
            self.places[name] = self.results.get(name, own)
            if name not in self.results:
                declared = f"static {C_TYPES[kind.dtype]} {own}[{max(kind.size, 1)}];"
                self.tables.append(f"{c_comment(name)}\n{declared}\n\n")
        return self.places[name]

    def _segment(self, segment: Segment) -> None:
        """Puts the tensors that a segment loads, plays its commands, gets the tensors that it stores."""
        here, self.segments = f"npuc_segments[{self.segments}]", self.segments + 1
        for at, move in enumerate(segment.loads):
            place = self._place(move.tensor)
            self.statements.append(f"npuc_put{_kind(move)}(&{here}.loads[{at}], memory, {place});")
        self._try(f"npuc_play({here}.commands, {here}.command_count, hooks)")
        for at, move in enumerate(segment.stores):
            place = self._written(move.tensor, TensorType(move.shape, HOST_DTYPES[move.place.precision]))
            self.statements.append(f"npuc_get{_kind(move)}(&{here}.stores[{at}], memory, {place});")

    def _try(self, call: str) -> None:
        self.statements += [f"failed = {call};", "if (failed)", "    return failed;"]

    def _steps(self, steps: Sequence[HostStep], later: set[str]) -> None:
        """Calls a function that computes steps; later: the tensors needed after them."""
        given = {name: each for each in steps for name in each.outputs}
        for name, each in given.items():
            if each.op == CONSTANT:
                with consistent(each):
                    value = np.array(each.attrs["value"], each.attrs["dtype"]).reshape(each.attrs["shape"])
                self.constants[name], self.types[name] = value, type_of(value)
        computing = [each for each in steps if each.op != CONSTANT]
        results = tuple(name for name in given if name in later and name not in self.constants)
        if not results:
            return
        constants, nodes = dict(self.constants), list[Node]()
        for each in computing:
            with consistent(each):
                nodes.append(_node(each, constants))
        taken = tuple(dict.fromkeys(n for each in computing for n in each.inputs if n not in {*given, *constants}))
        with consistent(computing[0]):
            graph = build("steps", nodes, {name: self.types[name] for name in taken}, results, constants)
        where = f"steps before segment {self.segments}" if later - {*self.results} else "the last steps"
        signature = FunctionSignature(
            taken, results, tuple(str(graph.tensors[name]) for name in (*taken, *results))
        )
        operators = [node.op for node in graph.nodes]
        found = function(graph, signature, STEPS, len(self.functions), where, operators)
        self.functions.append(found)
        places = [self._place(name) for name in taken]
        places += [self._written(name, graph.tensors[name]) for name in results]
        tensors = [self._tensor(name, place) for name, place in zip((*taken, *results), places, strict=True)]
        ins, outs = tensors[: len(taken)], tensors[len(taken) :]
        self._call(found.name, ins, outs)

    def _call(self, function: str, taken: Sequence[str], given: Sequence[str]) -> None:
        self.statements.append("{")
        for role, tensors in (("in", taken or ["{0}"]), ("out", given)):
            lines = [f"        {each}," for each in tensors]
            self.statements += [f"    npuc_tensor {role}[] = {{", *lines, "    };"]
        self.statements += [
            "",
            f"    failed = {function}(in, out);",
            "    if (failed)",
            "        return failed;",
            "}",
        ]

    def _tensor(self, name: str, place: str) -> str:
        """The initialiser of a call's tensor; its shape becomes a table."""
        kind = self.types[name]
        shape = "_".join(["shape", *map(str, kind.shape)]) if kind.shape else "0"
        table = f"static const uint32_t {shape}[] = {listed(kind.shape)};\n\n"
        if kind.shape and table not in self.tables:
            self.tables.append(table)
        return listed([c_string(name), TYPES[kind.dtype], len(kind.shape), shape, place])


def _parts(program: Program) -> list[Segment | list[HostStep]]:
    """Segments, and runs of consecutive host steps."""
    found: list[Segment | list[HostStep]] = []
    for _, group in groupby(Contents.of(program.manifest).steps, key=lambda step: isinstance(step, Segment)):
        steps = list(group)
        segments = [step for step in steps if isinstance(step, Segment)]
        found += segments or [[step for step in steps if isinstance(step, HostStep)]]
    return found


def _read(part: Segment | Sequence[HostStep]) -> list[str]:
    if isinstance(part, Segment):
        return [move.tensor for move in part.loads]
    return [name for step in part for name in step.inputs]


def _kind(move: TensorMove) -> str:
    """The suffix of npuc_put and npuc_get: fp16 tensors are float32 on the host."""
    return "_floats" if move.place.precision == "fp16" else ""


def _node(step: HostStep, constants: dict[str, Array]) -> Node:
    """A step as a node; scale and zero point of a conversion are added to the constants."""
    if step.op not in ("QuantizeLinear", "DequantizeLinear"):
        return Node(step.op, step.inputs, step.outputs, step.attrs, step.node)
    scale, zero = step.conversion_numbers()
    names = tuple(f"{step.outputs[0]}/{each}" for each in ("scale", "zero_point"))
    constants |= {names[0]: np.array(scale, "float32"), names[1]: np.array(zero, step.attrs.get("dtype", "int8"))}
    return Node(step.op, (*step.inputs, *names), step.outputs, {}, step.node)
