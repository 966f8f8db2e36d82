"""A program as C: its commands, blobs and tensors, the loop in c/ that plays commands, and a whole inference.

npuc_run.c plays the segments and computes the host steps between them. Consecutive host steps become one function
of npuc_steps.c, built on the library of npuc.host; a step that the library cannot compute is only declared, for
the application to supply. The text does not depend on when or where it was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import prod
from pathlib import Path
from string import Template

from npuc.host import c_text
from npuc.host.c_code import (
    C_TYPES,
    TYPES,
    FunctionSignature,
    HostFunction,
    constant,
    function,
    parameters,
    sources,
)
from npuc.host.c_text import array, floating, initialiser, struct_initialiser
from npuc.host.step import CONSTANT, HostStep, consistent
from npuc.ir import Array, Node, TensorType, type_of
from npuc.ops import build
from npuc.program import Program
from npuc.targets.nvdla.formats.precision import HOST_DTYPES
from npuc.targets.nvdla.machine.parameters import BYTES, SRAM_BASE, Machine
from npuc.targets.nvdla.program.artefact import WRITE, Contents, Segment, TensorMove, records_of
from npuc.text.escaping import c_comment, c_string, markdown_code

SOURCES = Path(__file__).parent / "c"
KINDS = ("NPUC_WRITE", "NPUC_POLL", "NPUC_WAIT")


def export_sources(program: Program) -> dict[str, bytes]:
    """The program's sources, the loop, the host steps and a README, by path.

    Raises ArtefactError (E502) for a damaged program.
    """
    contents = Contents.of(program.manifest)
    files = c_text.sources(SOURCES)
    readme = Template(files["README.md"].decode()).substitute(_figures(program, contents))
    readme += _second_memory(contents.machine)
    return {
        **files,
        **_run_files(program, _title(program, contents)),
        "README.md": readme.encode(),
        "npuc_program.h": header(program, contents).encode(),
        "npuc_program.c": source(program, contents).encode(),
    }


def header(program: Program, contents: Contents) -> str:
    """npuc_program.h: sizes, and declarations of the tables in npuc_program.c."""
    segments = contents.segments
    sizes = {
        "DRAM_BASE": f"0x{contents.dram.base:x}u",
        "DRAM_BYTES": f"{contents.dram.bytes}u",
        "COMMANDS": f"{len(_records(program))}u",
        "BLOBS": f"{len(_blobs(program, contents))}u",
        "SEGMENTS": f"{len(segments)}u",
    }
    declarations = (
        "extern const struct npuc_command npuc_commands[];",
        "extern const struct npuc_blob npuc_blobs[];",
        "extern const struct npuc_segment npuc_segments[];",
    )
    if contents.machine.sram_bytes:
        sizes |= {"SRAM_BASE": f"0x{SRAM_BASE:x}u", "SRAM_BYTES": f"{contents.machine.sram_bytes}u"}
    definitions = (f"#define NPUC_{name} {value}" for name, value in sizes.items())
    return c_text.header(_title(program, contents), "NPUC_PROGRAM_H", "npuc_nvdla.h", definitions, declarations)


def source(program: Program, contents: Contents) -> str:
    """npuc_program.c: commands, blobs, tensors, segments."""
    blobs = _blobs(program, contents)
    rows = [initialiser([f"{offset}u", f"{len(data)}u", f"blob_{at}"]) for at, (offset, data) in enumerate(blobs)]
    steps = contents.steps
    segments = contents.segments
    return "".join(
        [
            f'{_title(program, contents)}\n#include "npuc_program.h"\n\n',
            _public("npuc_command", "npuc_commands", _commands(program, contents)),
            *(array("uint8_t", f"blob_{at}", c_text.lines(map(str, data))) for at, (_, data) in enumerate(blobs)),
            _public("npuc_blob", "npuc_blobs", rows),
            *(
                _tensors(f"{role}_{at}", moves, steps, contents)
                for at, each in enumerate(segments)
                for role, moves in (("loads", each.loads), ("stores", each.stores))
            ),
            _public("npuc_segment", "npuc_segments", map(_segment, range(len(segments)), segments)),
        ]
    )


def _blobs(program: Program, contents: Contents) -> list[tuple[int, bytes]]:
    """What is in memory before the first segment: offsets from its base, and bytes; without empty images."""
    found = [(each.address - contents.dram.base, each.data(program.files)) for each in contents.dram.images]
    return [(offset, data) for offset, data in found if data]


def _public(kind: str, name: str, rows: Iterable[str]) -> str:
    """A table that the header declares; one unused row if there is none, as C has no empty arrays."""
    return array(f"struct {kind}", name, rows, public=True) or array(f"struct {kind}", name, ["{0}"], public=True)


def _second_memory(machine: Machine) -> str:
    """The README's paragraph on the second memory; empty without one."""
    if not machine.sram_bytes:
        return ""
    return (
        "\nMaps between layers lie in the memory at NVDLA's secondary interface, too, which must have "
        "NPUC_SRAM_BYTES\nfrom NPUC_SRAM_BASE on, whatever `memory_offset` is. The processor need not reach it; "
        "what it holds before\ndoes not matter.\n"
    )


def _title(program: Program, contents: Contents) -> str:
    return c_comment(f"{program.model.name} for {contents.machine.name}. Written by npuc.")


def _records(program: Program) -> Sequence[Sequence[int]]:
    """The commands as in registers.bin: kind, address, mask, value."""
    return records_of(program.files.get("registers.bin", b""))


def _commands(program: Program, contents: Contents) -> Iterable[str]:
    """Initialisers of the commands; writes of the low word of a DRAM address have a kind of their own."""
    registers = contents.registers
    contents.commands(program)  # checks the records, or raises E502
    for kind, address, mask, value in _records(program):
        dram = kind == WRITE and not contents.machine.in_sram(value)
        low = dram and "ADDR_LOW" in registers.register_at(address).name
        name = "NPUC_WRITE_ADDRESS" if low else KINDS[kind]
        yield initialiser([name, f"0x{address:x}u", f"0x{mask:x}u", f"0x{value:x}u"])


def _tensors(name: str, moves: Sequence[TensorMove], steps: Sequence[object], contents: Contents) -> str:
    """The tables of a segment's loads or stores: the channel offsets of every tensor, then the tensors."""
    channels = [
        array("uint32_t", f"{name}_channels_{at}", c_text.lines(f"{offset}u" for offset in offsets))
        for at, offsets in enumerate(channel_offsets(move, contents.machine) for move in moves)
    ]
    rows = [_tensor(f"{name}_channels_{at}", move, steps, contents) for at, move in enumerate(moves)]
    return "".join([*channels, array("struct npuc_tensor", name, rows)])


def channel_offsets(move: TensorMove, machine: Machine) -> list[int]:
    """Byte offsets of the channels from the start of a pixel: in its atom and surface, or in an image's pixel."""
    place, size = move.place, BYTES[move.place.precision]
    if place.pixels:
        offsets = {
            each.channel: at * place.surface_stride + each.low // 8
            for at, plane in enumerate(move.image().planes)
            for each in plane.components
        }
        return [offsets[channel] for channel in range(move.map_shape[0])]
    lanes = machine.atom_bytes // size
    return [lane // lanes * place.surface_stride + lane % lanes * size for lane in place.lane_numbers]


def _tensor(offsets: str, move: TensorMove, steps: Sequence[object], contents: Contents) -> str:
    channels, height, width = move.map_shape
    place = move.place
    planes = (
        [plane.pixel_bytes for plane in move.image().planes] if place.pixels else [contents.machine.atom_bytes]
    )
    strides = f"{{{planes[0]}, {planes[-1]}}}"
    scale, zero = _scale(move.tensor, steps)
    return struct_initialiser(
        name=c_string(move.tensor), address=f"{place.address - contents.dram.base}u", channels=channels,
        height=height, width=width, line_stride=f"{place.line_stride}u", pixel_strides=strides,
        element_bytes=BYTES[place.precision], channel_offsets=offsets, scale=floating(scale), zero_point=zero,
    )  # fmt: skip


def _scale(tensor: str, steps: Sequence[object]) -> tuple[float, int]:
    """Scale and zero point from the conversion before or after a tensor; 0 without a conversion."""
    for step in steps:
        converts = isinstance(step, HostStep) and step.op in ("QuantizeLinear", "DequantizeLinear")
        if isinstance(step, HostStep) and converts and tensor in (*step.inputs, *step.outputs):
            return step.conversion_numbers()
    return 0.0, 0


def _segment(at: int, segment: Segment) -> str:
    counted: dict[str, object] = {
        "commands": f"npuc_commands + {segment.start}", "command_count": segment.count,
        "loads": f"loads_{at}" if segment.loads else 0, "load_count": len(segment.loads),
        "stores": f"stores_{at}" if segment.stores else 0, "store_count": len(segment.stores),
    }  # fmt: skip
    return struct_initialiser(**counted)


def _figures(program: Program, contents: Contents) -> dict[str, object]:
    """The values for the README's template."""
    segments = contents.segments
    numbers = {id(each): at for at, each in enumerate(segments)}
    steps = [
        f"{markdown_code(step.op)} {markdown_code(step.node)}"
        if isinstance(step, HostStep)
        else f"segment {numbers[id(step)]}"
        for step in contents.steps
    ]
    buffers = dict(zip(parameters(program)[0], (*program.inputs, *program.outputs), strict=True))
    return {
        "buffers": "\n".join(
            f"{C_TYPES[port.dtype]} {name}[{prod(port.shape)}]; /* {list(port.shape)} */"
            for name, port in buffers.items()
        ),
        "names": ", ".join(buffers),
        "model": markdown_code(program.model.name),
        "machine": markdown_code(contents.machine.name),
        "commands": len(_records(program)),
        "blob_bytes": sum(len(each.data(program.files)) for each in contents.dram.images),
        "dram_bytes": contents.dram.bytes,
        "segments": len(segments),
        "loads": _table([move for each in segments for move in each.loads], contents),
        "stores": _table([move for each in segments for move in each.stores], contents),
        "steps": "\n".join(f"{at}. {text}" for at, text in enumerate(steps, 1)),
    }


def _table(moves: Sequence[TensorMove], contents: Contents) -> str:
    return "\n".join(_row(move, *_scale(move.tensor, contents.steps)) for move in moves)


def _row(move: TensorMove, scale: float, zero: int) -> str:
    extents = "x".join(map(str, move.map_shape))
    return f"| {markdown_code(move.tensor)} | {move.place.precision} | {extents} | {scale:g} | {zero} |"


STEPS = "steps"
INTRODUCTION = """/*
 * What the host computes before, between and behind segments, in order. `data` of a tensor has the alignment of
 * its type, and no two of a call overlap. Functions of npuc_steps.c keep results in static memory: one call at a
 * time.
 */"""
DECLARATION = """/* Runs the program once: fills its memory, plays segments, computes the host's steps. Gives 0, or
 * the first error of a hook or a step. Inputs and outputs: the network's, in order, row by row; frames as a camera
 * gives them. One call at a time. */
"""


def _head(program: Program) -> str:
    places = ["uint8_t *memory", "const struct npuc_hooks *hooks"]
    return f"int npuc_run({', '.join([*parameters(program)[1], *places])})"


def _run_files(program: Program, title: str) -> dict[str, bytes]:
    """npuc_run.h and .c, the host steps, and the library that they call, by path.

    Raises ArtefactError (E502) for a damaged program.
    """
    run = _Run(program)
    declared = f"{DECLARATION}{_head(program)};"
    header = c_text.header(title, "NPUC_RUN_H", "npuc_program.h", (), (declared,))
    steps = sources(run.functions, STEPS, INTRODUCTION)
    return {**steps, "npuc_run.h": header.encode(), "npuc_run.c": "\n".join([title, run.text]).encode()}


class _Run:
    """The statements of npuc_run, and the tensors passed between them."""

    def __init__(self, program: Program) -> None:
        self.types = {each.name: TensorType(each.shape, each.dtype) for each in program.inputs}
        self.head, (self.parameters, _) = _head(program), parameters(program)
        names = iter(self.parameters)
        self.places = {each.name: f"(void *){next(names)}" for each in program.inputs}
        self.results = {each.name: next(names) for each in program.outputs}
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
        used = {*re.findall(r"\w+", body)}
        unused = "".join(f"    (void){each};\n" for each in (*self.parameters, "hooks") if each not in used)
        includes = '#include "npuc_run.h"\n\n#include "npuc_steps.h"\n\n#include <math.h>\n#include <string.h>\n\n'
        return "".join(
            [includes, *self.tables, f"{self.head}\n{{\n    int failed;\n\n", unused, body, "    return 0;\n}\n"]
        )

    def _place(self, name: str) -> str:
        """The C expression of a tensor's first element; a constant becomes a table when first used."""
        if name not in self.places:
            self.places[name] = f"constant_{len(self.tables)}"
            self.tables.append(constant(self.places[name], self.constants[name]))
        return self.places[name]

    def _output_expression(self, name: str, kind: TensorType) -> str:
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
            place = self._output_expression(move.tensor, TensorType(move.shape, HOST_DTYPES[move.place.precision]))
            self.statements.append(f"npuc_get{_kind(move)}(&{here}.stores[{at}], memory, {place});")

    def _try(self, call: str) -> None:
        self.statements += [f"failed = {call};", "if (failed)", "    return failed;"]

    def _steps(self, steps: Sequence[HostStep], later: set[str]) -> None:
        """Calls a function that computes steps; later: the tensors needed after them."""
        given = {name: each for each in steps for name in each.outputs}
        for name, each in given.items():
            if each.op == CONSTANT:
                self.constants[name] = value = each.value
                self.types[name] = type_of(value)
        computing = [each for each in steps if each.op != CONSTANT]
        results = tuple(name for name in given if name in later and name not in self.constants)
        if not results:
            return
        constants, nodes = dict(self.constants), list[Node]()
        for each in computing:
            node, values = each.as_node()
            nodes.append(node)
            constants |= values
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
        places += [self._output_expression(name, graph.tensors[name]) for name in results]
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
        table = f"static const uint32_t {shape}[] = {initialiser(kind.shape)};\n\n"
        if kind.shape and table not in self.tables:
            self.tables.append(table)
        return initialiser([c_string(name), TYPES[kind.dtype], len(kind.shape), shape, place])


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
