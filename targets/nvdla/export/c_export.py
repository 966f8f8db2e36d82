"""A program as C: its commands, blobs and tensors, a whole inference, and the loop in c/ that plays commands.

The text does not depend on when or where it was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from npuc.host import c_text
from npuc.host.c_text import array, floating, listed, named
from npuc.host.step import HostStep
from npuc.program import Program
from npuc.targets.nvdla.export import c_run
from npuc.targets.nvdla.machine.parameters import BYTES, SRAM_BASE, Machine
from npuc.targets.nvdla.program.artefact import WRITE, Contents, Segment, TensorMove, records_of
from npuc.text.escaping import c_comment, c_string, markdown_code

SOURCES = Path(__file__).parent / "c"
KINDS = ("NPUC_WRITE", "NPUC_POLL", "NPUC_WAIT")


def exported(program: Program) -> dict[str, bytes]:
    """The program's sources, the loop, the host steps and a README, by path.

    Raises ArtefactError (E502) for a damaged program.
    """
    contents = Contents.of(program.manifest)
    files = c_text.sources(SOURCES)
    readme = Template(files["README.md"].decode()).substitute(_figures(program, contents))
    readme += _second_memory(contents.machine)
    return {
        **files,
        **c_run.files(program, _title(program, contents)),
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
    rows = [listed([f"{offset}u", f"{len(data)}u", f"blob_{at}"]) for at, (offset, data) in enumerate(blobs)]
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
        low = dram and "ADDR_LOW" in registers.at(address).name
        name = "NPUC_WRITE_ADDRESS" if low else KINDS[kind]
        yield listed([name, f"0x{address:x}u", f"0x{mask:x}u", f"0x{value:x}u"])


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
    return named(
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
    return named(**counted)


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
    return {
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
