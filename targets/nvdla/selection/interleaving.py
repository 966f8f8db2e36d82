"""Interleaving maps along W: by a contraction of RUBIK or by SDP copies, whichever the cycle model prefers.

RUBIK, which only nv_full has, takes maps stored one behind the other as a deconvolution with one row phase. SDP
copies maps wherever strides put them, as columns of pixels.

Atoms of a line are contiguous, but lines can have any stride. So a map is copied as one of width 1, whose lines
are its pixels: their stride in the result is a few atoms. Either all pixels of the map become lines, if their
stride is the same within and across the map's lines, and surfaces stay surfaces; or the pixels of one line become
lines, and the lines of one surface become surfaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from npuc.ir import Node
from npuc.targets.nvdla.arithmetic.integer import IDLE
from npuc.targets.nvdla.machine.parameters import MOST_EXTENT, Machine
from npuc.targets.nvdla.operations import pingpong
from npuc.targets.nvdla.operations.operation import Contraction, Elementwise, Sdp, Surface, Unit
from npuc.targets.nvdla.selection.context import Context

MOST_STEP = 32
"""The most maps of a contraction: a field of 5 bits."""
COPY = Sdp(Unit(IDLE), Unit(IDLE))


def select_interleaving(context: Context, node: Node) -> Sequence[Elementwise | Contraction]:
    """The operations that interleave maps along W in the fewest cycles."""
    copies, contraction = list(_copies(context, node)), _contraction(context, node)
    if contraction is None:
        return copies
    ways: list[Sequence[Elementwise | Contraction]] = [copies, [contraction]]
    return min(ways, key=lambda way: pingpong.sequence_clocks(way, context.machine))


def _contraction(context: Context, node: Node) -> Contraction | None:
    """RUBIK on maps of equal lines stored one behind the other; None where that is not possible."""
    result, step = context.placed[node.output].surface(), len(node.inputs)
    first, *others = (context.placed[name].surface() for name in node.inputs)
    surfaces, lanes = first.atoms(context.machine.atom_bytes), context.machine.atom_elements(first.precision)
    behind = [
        replace(first, address=first.address + number * surfaces * first.surface_stride)
        for number in range(1, step)
    ]
    channels = step * surfaces * lanes
    if not context.machine.rubik or others != behind or result.width != step * first.width or step > MOST_STEP:
        return None
    return Contraction(replace(first, channels=channels), step, result) if channels <= MOST_EXTENT else None


def _copies(context: Context, node: Node) -> Iterator[Elementwise]:
    """The SDP copies of all inputs."""
    placed, step = context.placed[node.output], len(node.inputs)
    whole, own = placed.surface(), placed.view.buffer.name == node.output
    for number, name in enumerate(node.inputs):
        source = context.placed[name].surface()
        place = whole.address + number * context.machine.atom_bytes
        result = replace(whole, address=place, width=source.width)
        ways = [_line_by_line(source, result, step, context.machine)]
        if _follow_evenly(source, result, step, context.machine, own=own):
            ways.append(_at_once(source, result, step, context.machine))
        for copied, copy in min(ways, key=len):
            yield Elementwise(copied, COPY, copy)


Pair = tuple[Surface, Surface]
"""Source and destination of a copy."""


def _follow_evenly(source: Surface, result: Surface, step: int, machine: Machine, *, own: bool) -> bool:
    """Whether the pixel stride of both maps is constant across line ends, and padding there may be overwritten.

    own: nothing else is stored in the lines of the result.
    """
    full = source.line_stride == source.width * machine.atom_bytes
    return source.height == 1 or (result.line_stride == step * source.line_stride and (full or own))


def _at_once(source: Surface, result: Surface, step: int, machine: Machine) -> list[Pair]:
    """Copies of as many lines of the map as fit one cube each, all surfaces together."""
    atom = machine.atom_bytes
    pitch = source.line_stride // atom if source.height > 1 else source.width
    found: list[Pair] = []
    for row in range(0, source.height, MOST_EXTENT // pitch or 1):
        pixels = (min(MOST_EXTENT // pitch or 1, source.height - row) - 1) * pitch + source.width
        copied, copy = (
            replace(
                each, address=each.address + row * each.line_stride, width=1, height=pixels, line_stride=stride
            )
            for each, stride in ((source, atom), (result, step * atom))
        )
        found.append((copied, copy))
    return found


def _line_by_line(source: Surface, result: Surface, step: int, machine: Machine) -> list[Pair]:
    """Copies of as many lines of one surface as fit one cube each; the lines become the cube's surfaces."""
    atom, lanes = machine.atom_bytes, machine.atom_elements(source.precision)
    found: list[Pair] = []
    for surface in range(source.atoms(atom)):
        for row in range(0, source.height, MOST_EXTENT // lanes):
            channels = min(MOST_EXTENT // lanes, source.height - row) * lanes
            copied, copy = (
                Surface(
                    each.address + surface * each.surface_stride + row * each.line_stride,
                    1, source.width, channels, stride, each.line_stride, each.precision,
                )
                for each, stride in ((source, atom), (result, step * atom))
            )  # fmt: skip
            found.append((copied, copy))
    return found
