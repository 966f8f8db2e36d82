"""From placed jobs to instruction words, the weight image and segments.

A job becomes extension words, where addresses are explicit, and the layer words of its chain with their flags. The
weight stream of a run is the concatenation of its words' blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from npuc.errors import DoesNotFit, EncodingError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.storage.bits import encode
from npuc.targets.easynpu.layers.jobs import Job, Stage
from npuc.targets.easynpu.layers.tiling import Tiling, best_tile, with_tile
from npuc.targets.easynpu.machine.isa import (
    EXTENSIONS,
    FUSED,
    MEMORIES,
    STORED,
    Control,
    Instruction,
    Layer,
    Operand,
    Reshape,
)
from npuc.targets.easynpu.machine.memory import MapPlace, feature_words
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rearrangement import SETUP, most_written, written_words
from npuc.targets.easynpu.machine.timing import Followers, PortUse, parameter_words, port_use
from npuc.targets.easynpu.plan.placement import PlacedJob, instruction_words, is_controlled


@frozen
class EmittedJob:
    """A job's words, its weight words and the certificate of its tile."""

    placed: PlacedJob
    words: tuple[Instruction, ...]
    weights: Array
    tiling: Tiling


def without_data(emitted: EmittedJob) -> EmittedJob:
    """The job as reports need it: its blocks keep their lengths, but not their contents."""
    job = emitted.placed.job
    stages = tuple(replace(stage, block=_without_channels(stage.block)) for stage in job.stages)
    placed = replace(emitted.placed, job=replace(job, stages=stages))
    return replace(emitted, placed=placed, weights=_without_channels(emitted.weights))


def _without_channels(block: Array) -> Array:
    return np.empty((len(block), 0), block.dtype)


def emit_job(placed: PlacedJob, machine: Machine) -> EmittedJob:
    """The words of a job. Raises DoesNotFit: E303 without a legal tile, E301 if a value exceeds its field."""
    job = placed.job
    if isinstance(job.stages[0].word, Reshape):
        return _emit_reshape(placed, job.stages[0], job.stages[0].word)
    layers = [stage.word for stage in job.stages if isinstance(stage.word, Layer)]
    parts = [stage for stage in job.stages if stage.source is not None]
    computing = job.stages[: len(layers)]
    rest, behind = computing[len(parts) :], layers[len(parts) :]
    followers = Followers(
        stages=len(rest),
        bs_words=sum(
            min(len(stage.block), parameter_words(layer)) for stage, layer in zip(rest, behind, strict=True)
        ),
        words=len(job.stages) - len(parts) + _extra_words(placed) + SETUP * (len(layers) < len(job.stages)),
        ports=_ports(placed, (parts[-1], *rest)),
    )
    undivided, name = job.takes or job.leaves, job.stages[0].node.name
    tile, tiling = best_tile(layers[: len(parts)], machine, followers, name, undivided=undivided)
    words: list[Instruction] = []
    sources = iter(placed.sources)
    for stage in job.stages:
        last, stores = stage is job.stages[-1], stage is computing[-1] and placed.stored is not None
        ends = last and not job.leaves
        place = next(sources) if stage.source is not None else None
        words += _extensions(placed, stage, place, last=ends, stores=stores)
        word = stage.word
        if isinstance(word, Layer):
            tiled = with_tile(word, *tile)
            word = replace(tiled, opcode=tiled.opcode | (0 if last else FUSED) | (STORED if stores else 0))
        words.append(word)
    for word in words:
        _check_fields(word, job.stages[0])
    return EmittedJob(placed, tuple(words), np.concatenate([stage.loaded for stage in job.stages]), tiling)


def _emit_reshape(placed: PlacedJob, stage: Stage, word: Reshape) -> EmittedJob:
    """The words of a reshape: it reads every word of its map once and writes rearrangement.written_words."""
    words = [*_extensions(placed, stage, placed.sources[0], last=True, stores=False), word]
    bus = feature_words(word.Ci, word.Hi, word.Wi) + written_words(word)
    cycles = len(words) + SETUP + bus
    tiling = Tiling(word.Ho, word.Wo, cycles, 1, cycles, None, 0, bus, bus)
    return EmittedJob(placed, tuple(words), stage.block, tiling)


def expect_fields(jobs: Sequence[Job]) -> None:
    """Raises DoesNotFit (E301) where a layer's geometry exceeds the instruction word, whatever its tile."""
    for job in jobs:
        for stage in job.stages:
            _check_fields(stage.word, job.stages[0])


def _ports(placed: PlacedJob, stages: Sequence[Stage]) -> tuple[PortUse, ...]:
    """The DTCMs from which each stage reads its operand, and to which it writes its results."""
    written = () if placed.job.leaves else (placed.dst, placed.stored)
    results = [place.memory for place in written if place is not None]
    end = placed.job.stages[-1].word
    times = most_written(end) if isinstance(end, Reshape) else 1
    return tuple(
        port_use(
            placed.opb.memory if placed.opb is not None and _combines(stage) else None,
            results if stage is stages[-1] else (),
            placed.sources[0].memory,
            times if stage is stages[-1] else 1,
        )
        for stage in stages
    )


def _combines(stage: Stage) -> bool:
    """Whether the stage reads a second operand."""
    operation = stage.word.operation
    return operation is not None and operation.mnemonic in ("add", "mul")


def _extra_words(placed: PlacedJob) -> int:
    return instruction_words(placed.job, extended=placed.explicit) - len(placed.job.stages)


def _extensions(
    placed: PlacedJob, stage: Stage, source: MapPlace | None, *, last: bool, stores: bool
) -> list[Instruction]:
    """The extension words before a stage: places of its source, operand and results, and control."""
    found: list[Instruction] = []
    if placed.explicit:
        roles = (
            ("src", source),
            ("opb", placed.opb if _combines(stage) else None),
            ("dst", placed.dst if last else None),
            ("sto", placed.stored if stores else None),
        )
        found += [operand(role, place) for role, place in roles if place is not None]
    if is_controlled(placed.job, stage):
        takes = placed.job.takes and stage is placed.job.stages[0]
        pointer = {} if stage.weights_at is None else {"set_weights": 1, "weights": stage.weights_at}
        opcode = EXTENSIONS["ctl"].opcode
        found.append(Control(opcode=opcode, keep_psum=int(stage.keeps), take_psum=int(takes), **pointer))
    return found


def operand(role: str, place: MapPlace) -> Operand:
    """The extension word that sets an operand's place."""
    return Operand(
        opcode=EXTENSIONS[role].opcode,
        memory=MEMORIES.index(place.memory),
        base=place.base,
        row=place.row,
        pixel=place.pixel,
        group=place.group,
    )


def _check_fields(word: Instruction, stage: Stage) -> None:
    try:
        encode(word)
    except EncodingError as error:
        problem = error.problems[0]
        raise DoesNotFit(
            "E301",
            problem.reason,
            node=stage.node.name,
            op=stage.node.op.removeprefix("Int"),
            limit=problem.limit,
            remedy="a smaller map, or fewer channels: the instruction word fixes these widths",
        ) from None
