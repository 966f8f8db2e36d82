"""What crosses the border between host and DTCMs, beside what no plan saves and what the best one would move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npuc.ir import Graph
from npuc.targets.easynpu.layers.jobs import Job, Stage
from npuc.targets.easynpu.layers.windows import whole
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.isa import Layer, Reshape
from npuc.targets.easynpu.machine.memory import LANES, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import is_dense
from npuc.targets.easynpu.plan.strips import OBJECTIVES, Plan
from npuc.targets.easynpu.program.artefact import Segment, TensorMove
from npuc.targets.easynpu.program.emission import EmittedJob
from npuc.targets.easynpu.program.lowering import Lowered


def host_traffic(lowered: Lowered, graph: Graph, machine: Machine) -> dict[str, Any]:
    """Bytes between host and DTCMs, and what no plan can save: weights once, network inputs and outputs once.

    raw_bytes: the same bound with maps and weights as they are, not in words of 16 channels. optimum_bytes: what
    the best plan of its class moves (strips). plans: for every objective what its best plan moves, and the cycles
    in which it computes halo again. computed_macs: MACs that the words do, halo and zeros of grouped convolutions
    included.
    """
    segments = [step for step in lowered.steps if isinstance(step, Segment)]
    moves = [move for segment in segments for move in (*segment.loads, *segment.stores)]
    images = [image for segment in segments for image in segment.images]
    maps = sum(_words(move) for move in moves)
    weights = sum(image.words for image in images if image.memory == "weight")
    stored = {move.tensor for segment in segments for move in segment.stores}
    loaded = {move.tensor for segment in segments for move in segment.loads}
    border = (loaded - stored) | {name for name in stored if _leaves(graph, name, loaded)}
    distinct = _distinct(lowered.jobs)
    least = sum(len(stage.block) for stage in distinct) + sum(whole(graph, name).words for name in border)
    computed = sum(multiplied(stage.word) for job in lowered.jobs for stage in job.placed.job.stages)
    return {
        "raw_bytes": sum(map(_raw_bytes, distinct)) + sum(graph.tensors[name].size for name in border),
        "map_bytes": maps * machine.word_bytes,
        "weight_bytes": weights * machine.word_bytes,
        "instruction_bytes": sum(image.words for image in images if image.memory == "itcm") * isa.WORD_BYTES,
        "lower_bound_bytes": least * machine.word_bytes,
        "ratio": (maps + weights) / least if least else None,
        "optimum_bytes": _optimum(lowered.plans, maps + weights, machine),
        "plans": [_row(objective, lowered.plans, machine) for objective in OBJECTIVES if all(lowered.plans)],
        "computed_macs": computed,
    }


def _row(objective: str, plans: Sequence[Mapping[str, Plan]], machine: Machine) -> dict[str, Any]:
    """What the best plan for an objective takes, over all runs of array nodes."""
    chosen = [each[objective] for each in plans]
    return {
        "objective": objective,
        "bytes": sum(plan.traffic_words for plan in chosen) * machine.word_bytes,
        "halo_cycles": sum(plan.halo_cycles for plan in chosen),
    }


def _optimum(plans: Sequence[Mapping[str, Plan]], moved: int, machine: Machine) -> int | None:
    """The least traffic of the class, in bytes; a weight stream that repeats by chance moves even less."""
    if not all(plans):
        return None
    return min(sum(each["traffic"].traffic_words for each in plans), moved) * machine.word_bytes


def multiplied(word: Layer | Reshape) -> int:
    """MACs that a convolution's word does; 0 for any other."""
    operation = word.operation if isinstance(word, Layer) else None
    if not isinstance(word, Layer) or operation is None or not operation.mnemonic.startswith(("conv", "dwconv")):
        return 0
    return word.Ho * word.Wo * word.Co * word.Hk * word.Wk * (word.Ci if is_dense(word) else 1)


def _leaves(graph: Graph, tensor: str, loaded: set[str]) -> bool:
    """Whether a stored tensor is an output of the array: the host itself reads it."""
    host = any(reader.op == "DequantizeLinear" for reader in graph.readers[tensor])
    return host or tensor in graph.outputs or tensor not in loaded


def _words(move: TensorMove) -> int:
    return -(-move.channels // isa.WORD_BYTES) * move.height * move.width


def _distinct(jobs: Sequence[EmittedJob]) -> list[Stage]:
    """The words of every layer, channel group by channel group, each once, however many tiles there are."""
    found: dict[tuple[str, int], Job] = {}
    for job in jobs:
        tensor, channel = job.placed.job.stages[-1].node.output, job.placed.job.start[0]
        found.setdefault((tensor, channel), job.placed.job)
    return [stage for job in found.values() for stage in job.stages]


def _raw_bytes(stage: Stage) -> int:
    """A word's block without the lanes that no channel uses; a table has one segment a lane."""
    lanes = LANES if stage.node.op == "IntTable" else stage.word.Co / groups(stage.word.Co)
    return round(len(stage.block) * lanes)
