"""From placed jobs to instruction words, the weight image and segments.

Per job: extension words where addresses are explicit, then the layer words of its chain with their flags. The
weight stream of a run is the blocks of its words in order; where words or weights exceed the machine, the run is
cut into segments, each of which loads its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from npuc.bits import encode
from npuc.errors import DoesNotFit, EncodingError
from npuc.ir import Array
from npuc.targets.easynpu.isa import EXTENSIONS, FUSED, MEMORIES, STORED, Instruction, Layer, Operand
from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.memory import Place
from npuc.targets.easynpu.placement import PlacedJob
from npuc.targets.easynpu.selection import Job, Stage
from npuc.targets.easynpu.tiling import Tiling, best_tile
from npuc.targets.easynpu.timing import Followers


@dataclass(frozen=True)
class EmittedJob:
    """A job's words, its weight words and the certificate of its tile."""

    placed: PlacedJob
    words: tuple[Instruction, ...]
    weights: Array
    tiling: Tiling


def cut(jobs: Sequence[Job], machine: Machine, *, words_per_job: int) -> list[list[Job]]:
    """The jobs in runs whose words fit the ITCM and whose weight blocks fit the weight DTCM.

    words_per_job: extension words at most. Raises DoesNotFit (E302) for a single job that exceeds them.
    """
    runs: list[list[Job]] = [[]]
    words = weights = 0
    for job in jobs:
        more_words, more_weights = len(job.stages) + words_per_job, weight_words(job)
        _expect(machine, "weight", more_weights, job)
        _expect(machine, "itcm", more_words, job)
        if words + more_words > machine.itcm_words or weights + more_weights > machine.weight_words:
            runs.append([])
            words = weights = 0
        runs[-1].append(job)
        words, weights = words + more_words, weights + more_weights
    return runs


def weight_words(job: Job) -> int:
    """Words that the job streams from the weight DTCM."""
    return sum(len(stage.block) for stage in job.stages)


def _expect(machine: Machine, memory: str, words: int, job: Job) -> None:
    capacity = machine.capacity_words(memory)
    if words > capacity:
        node = job.stages[0].node
        what = "its weights and bias-scale blocks take" if memory == "weight" else "its instructions take"
        raise DoesNotFit(
            "E302",
            f"{what} {words} words",
            node=node.name,
            op=node.op.removeprefix("Int"),
            limit=f"{memory}_words = {capacity}",
            remedy=f"a machine with {memory}_words = {words} (--machine FILE)",
        )


def emit_job(placed: PlacedJob, machine: Machine) -> EmittedJob:
    """The words of a job. Raises DoesNotFit (E303) without a legal tile, EncodingError (E301) for a field."""
    stages = placed.job.stages
    prefixes = _prefixes(placed) if placed.explicit else ()
    first, rest = stages[0], stages[1:]
    followers = Followers(
        stages=len(rest),
        bs_words=sum(len(stage.block) for stage in rest),
        operand_reads=int(placed.opb is not None and placed.opb.memory == "fmap"),
        words=len(rest) + len(prefixes),
    )
    tiled, tiling = best_tile(first.word, machine, followers, first.node.name)
    words: list[Instruction] = []
    for position, stage in enumerate(stages):
        last = position == len(stages) - 1
        flags = (0 if last else FUSED) | (STORED if last and placed.stored else 0)
        tile = tiled if position == 0 else _same_tile(stage.word, tiled)
        if prefixes:
            words += _prefixes_of(stage, position, prefixes, last=last)
        words.append(replace(tile, opcode=tile.opcode | flags))
    for word in words:
        _check_fields(word, first)
    return EmittedJob(placed, tuple(words), np.concatenate([stage.block for stage in stages]), tiling)


def _same_tile(word: Layer, tiled: Layer) -> Layer:
    """A fused word repeats the tile of the chain's first word; its sub-ifmap is the sub-ofmap."""
    return replace(word, y=tiled.y, x=tiled.x, yi=tiled.y, xi=tiled.x)


def _prefixes(placed: PlacedJob) -> tuple[tuple[str, Operand], ...]:
    roles = (("src", placed.src), ("opb", placed.opb), ("dst", placed.dst), ("sto", placed.stored))
    return tuple((role, operand(role, place)) for role, place in roles if place is not None)


def _prefixes_of(stage: Stage, position: int, prefixes: Sequence[tuple[str, Operand]], *, last: bool) -> list[Operand]:
    """The extension words before one stage: src before the first, opb before the addition, dst before the last."""
    adds = stage.word.operation is not None and stage.word.operation.mnemonic in ("add", "mul")
    wanted = {"src": position == 0, "opb": adds, "dst": last, "sto": last}
    return [word for role, word in prefixes if wanted[role]]


def operand(role: str, place: Place) -> Operand:
    """The extension word that puts an operand at this place."""
    return Operand(
        opcode=EXTENSIONS[role][0],
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
