"""Traffic between host and DTCMs, with a lower bound for any plan and the traffic of the best one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

from npuc.ir import Graph, Node
from npuc.ops.attributes import AVERAGE, BLOCKS, SELECTS
from npuc.targets.easynpu.layers.addressing import map_shape
from npuc.targets.easynpu.layers.jobs import Job, Stage
from npuc.targets.easynpu.layers.windows import whole
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.isa import Layer, Reshape
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, SLOPE_WORDS, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import is_dense
from npuc.targets.easynpu.plan.strips import OBJECTIVES, Plan
from npuc.targets.easynpu.program.artefact import Segment, TensorMove
from npuc.targets.easynpu.program.emission import EmittedJob
from npuc.targets.easynpu.program.lowering import Lowered


def host_traffic(lowered: Lowered, machine: Machine) -> dict[str, Any]:
    """Bytes between host and DTCMs, and the lower bound for any plan: weights, inputs and outputs, each once.

    lower_bound_bytes counts DTCM words. raw_bytes: the same bound without the padding of words to 16 channels.
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
    border = borders(graph, loaded, stored)
    distinct = _distinct(lowered.jobs)
    least = weight_bound(graph, {stage.node for stage in distinct}) + sum(
        whole(graph, name).words for name in border
    )
    computed = sum(multiplied(stage.word) for job in lowered.jobs for stage in job.placed.job.stages)
    return {
        "raw_bytes": sum(map(_raw_bytes, distinct)) + sum(graph.tensors[name].size for name in border),
        "map_bytes": maps * machine.word_bytes,
        "weight_bytes": weights * machine.word_bytes,
        "instruction_bytes": sum(image.words for image in images if image.memory == "itcm") * isa.WORD_BYTES,
        "lower_bound_bytes": least * machine.word_bytes,
        "ratio": (maps + weights) / least if least else None,
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


def _row(objective: str, plans: Sequence[Mapping[str, Plan]], machine: Machine) -> dict[str, Any]:
    """The cost of the best plan for an objective, over all runs of array nodes."""
    chosen = [each[objective] for each in plans]
    return {
        "objective": objective,
        "bytes": sum(plan.traffic_words for plan in chosen) * machine.word_bytes,
        "halo_cycles": sum(plan.halo_cycles for plan in chosen),
    }


def _optimum(plans: Sequence[Mapping[str, Plan]], moved: int, machine: Machine) -> int:
    """The least traffic of the class, in bytes, or this program's if maps that are still resident save more."""
    return min(sum(each["traffic"].traffic_words for each in plans), moved) * machine.word_bytes


def multiplied(word: Layer | Reshape) -> int:
    """MACs that a convolution's word performs; 0 for any other word."""
    operation = word.operation if isinstance(word, Layer) else None
    if not isinstance(word, Layer) or operation is None or not operation.mnemonic.startswith(("conv", "dwconv")):
        return 0
    return word.Ho * word.Wo * word.Co * word.Hk * word.Wk * (word.Ci if is_dense(word) else 1)


def borders(graph: Graph, loaded: set[str], stored: set[str]) -> set[str]:
    """The maps that enter the array first and those that leave it last, which every plan moves once."""
    behind = set(stored)
    """Tensors that depend on a result of the array."""
    for node in graph.nodes:
        if behind.intersection(node.inputs):
            behind.update(node.outputs)
    leaving: set[str] = set()
    waiting, known = list(graph.outputs), set[str]()
    while waiting:
        name = waiting.pop()
        if name in stored:
            leaving.add(name)
        elif name not in known and name in graph.producers:
            waiting += graph.producers[name].inputs
        known.add(name)
    return (loaded - behind) | leaving


def weight_bound(graph: Graph, nodes: Collection[Node]) -> int:
    """Words of the network's weights, biases and slopes, each distinct constant once.

    What lowering adds (taps of averages, tables, scales of sums, words that move channels) does not count.
    """
    found: dict[tuple[bytes, ...], int] = {}
    for node in nodes:
        if node.op not in ("IntConv", "IntPRelu") or (node.op == "IntConv" and (AVERAGE(node) or SELECTS(node))):
            continue
        constants = [graph.constants[name] for name in node.inputs if name in graph.constants]
        outputs = groups(map_shape(graph.shape(node.output))[0])
        taps = prod(constants[0].shape[1:]) // BLOCKS(node) if node.op == "IntConv" else 0
        words = outputs * (BS_WORDS + taps) if node.op == "IntConv" else outputs * SLOPE_WORDS
        found[tuple(each.tobytes() for each in constants[:2])] = words
    return sum(found.values())


def _words(move: TensorMove) -> int:
    return -(-move.channels // isa.WORD_BYTES) * move.height * move.width


def _distinct(jobs: Sequence[EmittedJob]) -> list[Stage]:
    """The stages of every layer and channel chunk, each once, regardless of the number of tiles."""
    found: dict[tuple[str, int], Job] = {}
    for job in jobs:
        tensor, channel = job.placed.job.stages[-1].node.output, job.placed.job.start[0]
        found.setdefault((tensor, channel), job.placed.job)
    return [stage for job in found.values() for stage in job.stages]


def _raw_bytes(stage: Stage) -> int:
    """Bytes of a word's block without unused lanes; a table has one segment per lane."""
    lanes = LANES if stage.node.op == "IntTable" else stage.word.Co / groups(stage.word.Co)
    return round(len(stage.loaded) * lanes)
