"""Columns of several maps in turns: SDP copies every map as pixels one below the other, wherever strides put them.

An atom follows the one before it in a line, but lines lie anywhere. So a map is copied as one of width 1, whose
lines are its pixels: their stride is a few atoms in the result. Either all pixels of a map are the lines, if those
of its lines follow one another in equal steps, and surfaces are surfaces; or the pixels of a line are the lines,
and the lines of one surface are the surfaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npuc.ir import Node
from npuc.targets.nvdla.integer import IDLE
from npuc.targets.nvdla.machine import Machine
from npuc.targets.nvdla.operations import Elementwise, Sdp, Surface, Unit
from npuc.targets.nvdla.selection.context import Context

MOST = 8192
"""Lines, and channels, of a cube: fields of 13 bits."""
COPY = Sdp(Unit(IDLE), Unit(IDLE))


def select_interleaving(context: Context, node: Node) -> Iterator[Elementwise]:
    """The copies that interleave maps along W."""
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
"""What is copied, and where to."""


def _follow_evenly(source: Surface, result: Surface, step: int, machine: Machine, *, own: bool) -> bool:
    """Whether pixels of successive lines are as far apart as those of a line, and what is between may be written.

    own: nothing else lies in the lines of the result.
    """
    full = source.line_stride == source.width * machine.atom_bytes
    return source.height == 1 or (result.line_stride == step * source.line_stride and (full or own))


def _at_once(source: Surface, result: Surface, step: int, machine: Machine) -> list[Pair]:
    """As many lines as make a cube, all surfaces together."""
    atom = machine.atom_bytes
    pitch = source.line_stride // atom if source.height > 1 else source.width
    found: list[Pair] = []
    for row in range(0, source.height, MOST // pitch or 1):
        pixels = (min(MOST // pitch or 1, source.height - row) - 1) * pitch + source.width
        copied, copy = (
            replace(
                each, address=each.address + row * each.line_stride, width=1, height=pixels, line_stride=stride
            )
            for each, stride in ((source, atom), (result, step * atom))
        )
        found.append((copied, copy))
    return found


def _line_by_line(source: Surface, result: Surface, step: int, machine: Machine) -> list[Pair]:
    """As many lines of a surface as make a cube, whose surfaces they are."""
    atom, lanes = machine.atom_bytes, machine.atom_elements(source.precision)
    found: list[Pair] = []
    for surface in range(source.atoms(atom)):
        for row in range(0, source.height, MOST // lanes):
            channels = min(MOST // lanes, source.height - row) * lanes
            copied, copy = (
                Surface(
                    each.address + surface * each.surface_stride + row * each.line_stride,
                    1, source.width, channels, stride, each.line_stride, each.precision,
                )
                for each, stride in ((source, atom), (result, step * atom))
            )  # fmt: skip
            found.append((copied, copy))
    return found
