"""The rules of the chip models for a program's words, checked without running it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npuc.bits import places
from npuc.errors import ArtefactError
from npuc.program import Program
from npuc.targets.easynpu.machine.chains import Stage, refused
from npuc.targets.easynpu.machine.isa import Instruction, Layer
from npuc.targets.easynpu.machine.memory import Map
from npuc.targets.easynpu.machine.rules import check, expect_kept
from npuc.targets.easynpu.machine.timing import kernel_extent
from npuc.targets.easynpu.program.artefact import Contents
from npuc.targets.easynpu.simulate import streams
from npuc.targets.easynpu.simulate.hardware import Hardware
from npuc.targets.easynpu.simulate.loading import load_images
from npuc.targets.easynpu.simulate.walk import Chain, segments_of

ZERO = "zero"
"""The meaning of a reserved field."""


def expect_legal(program: Program) -> None:
    """Raises ArtefactError (E503) for the first instruction that a chip model would refuse.

    Checks words on their own and in their chain, the weight stream against what is loaded, and maps against what
    was written.
    """
    machine = Contents.of(program.manifest).machine
    state, kept = Hardware.of(machine), None
    for segment, chains in segments_of(program):
        load_images(segment, program.files, machine, state)
        for move in segment.loads:
            _written(state, move.map)
        state.weights_at = 0
        for chain in chains:
            check(chain.stages, machine, chain.low)
            kept = expect_kept(kept, chain.stages)
            computing = [stage for stage in chain.stages if stage.reshape is None]
            _, state.weights_at = streams.load(computing, state.weights_at, state.weight, state.parameter_pads)
            _expect_written(state, chain)
        for move in segment.stores:
            memory = state.dtcm(move.place.memory)
            if not memory.written[move.map.grid].all():
                last = chains[-1].stages[-1] if chains else None
                reason = f"nothing has written all of '{move.tensor}', which the host reads from the DTCM"
                raise refused(last.number if last else 0, reason, last.word if last else None)


def expect_reserved(number: int, word: Instruction) -> None:
    """Raises ArtefactError (E503) for a reserved field that is not 0."""
    for name, place in places(type(word)).items():
        value = getattr(word, name)
        if place.meaning == ZERO and value:
            raise refused(number, f"{name} is {value}", word, f"{name} = 0", f"leave {name} out")


def _expect_written(state: Hardware, chain: Chain) -> None:
    """Refuses a chain that reads words that were never written, and marks those that it writes."""
    for stage, each in _reads(chain):
        memory = state.dtcm(each.place.memory)
        missing = each.grid[~memory.written[each.grid]]
        if missing.size:
            reason = f"word {missing[0]} of the {memory.name} DTCM is read before it is written"
            raise refused(stage.number, reason, stage.word, remedy="a map where one lies, of its size")
    for stage in chain.stages:
        for each in chain.written(stage):
            _written(state, each)


def _reads(chain: Chain) -> Iterator[tuple[Stage, Map]]:
    """The maps that a chain reads, up to the last row and column that windows reach."""
    for before, stage in zip((None, *chain.stages), chain.stages, strict=False):
        if before is None or before.keeps:
            whole = stage.ifmap(chain.machine, chain.low)
            height, width = _reached(stage.layer) if stage.reshape is None else (whole.height, whole.width)
            if min(height, width) > 0:
                yield stage, replace(whole, height=height, width=width)
        if stage.name in ("add", "mul"):
            yield stage, stage.operand()


def _reached(layer: Layer) -> tuple[int, int]:
    """Rows and columns of the ifmap up to the last one in a window."""
    rows = (layer.Ho - 1) * layer.Sh - layer.Ph + kernel_extent(layer.Hk, layer.Dh)
    columns = (layer.Wo - 1) * layer.Sw - layer.Pw + kernel_extent(layer.Wk, layer.Dw)
    return min(layer.Hi, rows), min(layer.Wi, columns)


def _written(state: Hardware, each: Map) -> None:
    memory = state.dtcm(each.place.memory)
    first, last = each.span
    if first < 0 or last >= len(memory.written):
        reason = f"words {first}..{last} of the {memory.name} DTCM are loaded"
        raise ArtefactError("E503", reason, limit=f"0..{len(memory.written) - 1}")
    memory.written[each.grid] = True
