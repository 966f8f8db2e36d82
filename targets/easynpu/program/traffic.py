"""Traffic between host and DTCMs, with what every program moves and the traffic of the best plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.isa import Layer, Reshape
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import is_dense
from npuc.targets.easynpu.plan.strips import OBJECTIVES, StripPlan
from npuc.targets.easynpu.program.artefact import Segment, TensorMove
from npuc.targets.easynpu.program.bounds import least_bytes
from npuc.targets.easynpu.program.lowering import Lowered


def host_traffic(lowered: Lowered, machine: Machine) -> dict[str, Any]:
    """Bytes between host and DTCMs, and those that every program moves (bounds).

    optimum_bytes: what the best plan of its class moves (strips). plans: for every objective, what its best plan
    moves, and the cycles in which it recomputes halo. computed_macs: MACs that the words perform, including halo
    and the zeros of grouped convolutions.
    """
    graph = lowered.quantised.graph
    segments = [step for step in lowered.steps if isinstance(step, Segment)]
    moves = [move for segment in segments for move in (*segment.loads, *segment.stores)]
    images = [image for segment in segments for image in segment.images]
    maps = sum(_words(move) for move in moves)
    weights = sum(image.words for image in images if image.memory == "weight")
    stored = {move.tensor for segment in segments for move in segment.stores}
    loaded = {move.tensor for segment in segments for move in segment.loads}
    nodes = dict.fromkeys(stage.node for job in lowered.jobs for stage in job.placed.job.stages)
    computed = sum(multiplied(stage.word) for job in lowered.jobs for stage in job.placed.job.stages)
    return {
        "map_bytes": maps * machine.word_bytes,
        "weight_bytes": weights * machine.word_bytes,
        "instruction_bytes": sum(image.words for image in images if image.memory == "itcm") * isa.WORD_BYTES,
        "least_bytes": least_bytes(graph, nodes, loaded, stored),
        "optimum_bytes": _optimum(lowered.plans, maps + weights, machine),
        "plans": [_row(objective, lowered.plans, machine) for objective in OBJECTIVES],
        "computed_macs": computed,
    }


def time(cycles: int, traffic: Mapping[str, Any], machine: Machine) -> dict[str, Any]:
    """Cycles of all transfers, and of computation and transfers one after the other, as plans weigh them."""
    size = sum(traffic[each] for each in ("map_bytes", "weight_bytes", "instruction_bytes"))
    transfers = -(-size // machine.host_bytes_per_cycle)
    return {
        "bytes_per_cycle": machine.host_bytes_per_cycle,
        "transfer_cycles": transfers,
        "cycles_with_transfers": cycles + transfers,
    }


def _row(objective: str, plans: Sequence[Mapping[str, StripPlan]], machine: Machine) -> dict[str, Any]:
    """The cost of the best plan for an objective, over all runs of array nodes."""
    chosen = [each[objective] for each in plans]
    return {
        "objective": objective,
        "bytes": sum(plan.traffic_words for plan in chosen) * machine.word_bytes,
        "halo_cycles": sum(plan.halo_cycles for plan in chosen),
    }


def _optimum(plans: Sequence[Mapping[str, StripPlan]], moved: int, machine: Machine) -> int:
    """The least traffic of the class, in bytes, or this program's if maps that are still resident save more."""
    return min(sum(each["traffic"].traffic_words for each in plans), moved) * machine.word_bytes


def multiplied(word: Layer | Reshape) -> int:
    """MACs that a convolution's word performs; 0 for any other word."""
    operation = word.operation if isinstance(word, Layer) else None
    if not isinstance(word, Layer) or operation is None or not operation.mnemonic.startswith(("conv", "dwconv")):
        return 0
    return word.Ho * word.Wo * word.Co * word.Hk * word.Wk * (word.Ci if is_dense(word) else 1)


def _words(move: TensorMove) -> int:
    return -(-move.channels // isa.WORD_BYTES) * move.height * move.width
