"""The document's control signals, cycle by cycle, from a run of the stepping simulator.

Names and widths are the document's (easynpu, PE, Ifmap pads, PE controller) where it has them; a machine with
larger pads has wider addresses. The signals are those of row 0, PE 0 at the inputs of the PEs; a result leaves
them three cycles later. docs/easynpu.md describes every signal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TextIO

import numpy as np

from npuc.ir import Array
from npuc.storage.vcd import Signal, VcdWriter
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rearrangement import SETUP
from npuc.targets.easynpu.machine.timing import DRAIN
from npuc.targets.easynpu.simulate.events import Executed, Transfers
from npuc.targets.easynpu.simulate.layer_run import LayerRun
from npuc.targets.easynpu.simulate.schedule import NONE, PadStep, Sweep, pad_addresses

DECODE, LOAD_BS, FIRST_FETCH, LOAD_IFMAP, RUN, WAIT, DRAINING = range(1, 8)
"""Values of `state`; 0 is idle."""
IFMAP, PADDING, OFMAP = range(3)
"""Values of `bus_kind`."""
ADDRESS_BITS = 24


def signals(machine: Machine) -> tuple[Signal, ...]:
    """Every signal of a trace."""

    def bits(entries: int, least: int) -> int:
        return max(least, (entries - 1).bit_length())

    return (
        Signal("state", 3),
        Signal("instruction", 16),
        Signal("oy", 8),
        Signal("ox", 8),
        Signal("pe_en", 1),
        Signal("Pe_ps_addr", bits(machine.psum_entries, 6)),
        Signal("Pe_ps_outer_en", 1),
        Signal("Pe_ps_back_en", 1),
        Signal("Pe_ps_shift_scale", 8),
        Signal("Pe_maxpool_en", 1),
        Signal("Pe_byp_mul_en", 1),
        Signal("Pe_bias_mul_en", 1),
        Signal("if_hw_addr", bits(machine.ifmap_pad_entries, 6)),
        Signal("if_ch_addr", 4),
        Signal("if_set", 1),
        Signal("cast_mode", 1),
        Signal("w_och_gcnt", bits(machine.weight_pad_entries, 4)),
        Signal("bus_valid", 1),
        Signal("bus_kind", 2),
        Signal("bus_memory", 1),
        Signal("bus_addr", ADDRESS_BITS),
        Signal("operand_valid", 1),
        Signal("operand_memory", 1),
        Signal("operand_addr", ADDRESS_BITS),
        Signal("weight_valid", 1),
        Signal("weight_addr", ADDRESS_BITS),
    )


@dataclass
class Chunk:
    """Consecutive cycles of a layer: a value per cycle for each signal that is not always 0."""

    start: int
    cycles: int
    columns: dict[str, Array] = field(default_factory=dict[str, Array])

    def of(self, name: str) -> Array:
        """The column of a signal."""
        return self.columns.setdefault(name, np.zeros(self.cycles, np.int64))

    def put(self, at: int, cycles: int, **values: Array | int) -> None:
        """Sets values from a cycle of the chunk on."""
        for name, value in values.items():
            self.of(name)[at : at + cycles] = value


class Tracer:
    """A watcher that writes a value change dump; a chunk is written when all its weight fetches are known."""

    def __init__(self, stream: TextIO, machine: Machine) -> None:
        self.writer = VcdWriter(stream, "easynpu", signals(machine))
        self._waiting: list[Chunk] = []

    def close(self) -> None:
        """Ends the dump."""
        self.writer.close()

    def started(self, run: LayerRun, words: int) -> None:
        """Records decoding, parameters, first weights and first sub-ifmap."""
        chunk = Chunk(0, run.cycle)
        number = run.end
        chunk.put(0, words, state=DECODE, instruction=number + 1 - words + np.arange(words))
        chunk.put(words, run.cycle, instruction=run.chain[0].number, state=LOAD_BS)
        at = words
        for block in run.blocks:
            count = len(block.parameters)
            chunk.put(at, count, weight_valid=1, weight_addr=block.start + np.arange(count))
            at += block.cycles
        loading = run.cycle - len(run.first_load)
        chunk.put(at, loading - at, state=FIRST_FETCH)
        chunk.put(loading, run.cycle, state=LOAD_IFMAP)
        _put_loads(chunk, loading + np.arange(len(run.first_load)), run.first_load, run.sources[0].place.memory)
        self._waiting = [chunk]

    def executed(self, run: LayerRun, step: Executed) -> None:
        """Records a step, and the cycles in which it waits for the next sub-ifmap."""
        chunk = Chunk(step.start, step.cycles)
        tile = step.step.tile
        chunk.put(0, step.cycles, state=WAIT, oy=tile.oy, ox=tile.ox, instruction=run.chain[step.step.part].number)
        self._sweeps(chunk, run, step)
        _put_loads(chunk, step.loaded, step.load, step.source)
        self._waiting.append(chunk)
        self._put_fetches(run, step)

    def finished(self, run: LayerRun) -> None:
        """Records the draining of the PEs' registers."""
        chunk = Chunk(run.cycle - DRAIN, DRAIN)
        chunk.put(0, DRAIN, state=DRAINING, instruction=run.end)
        self._waiting.append(chunk)
        self._flush(run.cycle)

    def rearranged(self, number: int, words: int, transfers: Transfers) -> None:
        """Records decoding and dividing, then a bus word in every cycle."""
        cycles = len(transfers.addresses)
        begin = words + SETUP
        chunk = Chunk(0, begin + cycles)
        chunk.put(0, words, state=DECODE, instruction=number + 1 - words + np.arange(words))
        memory = np.where(transfers.writes, transfers.target == "skip", transfers.source == "skip")
        kind = np.where(transfers.writes, OFMAP, IFMAP)
        chunk.put(words, SETUP, state=LOAD_BS, instruction=number)
        chunk.put(begin, cycles, state=RUN, instruction=number, bus_valid=1, bus_kind=kind)
        chunk.put(begin, cycles, bus_memory=memory, bus_addr=transfers.addresses)
        self.writer.write(chunk.columns, chunk.cycles)

    def _sweeps(self, chunk: Chunk, run: LayerRun, step: Executed) -> None:
        """Adds the signals of every pass."""
        at = passes = words = 0
        for sweep in step.plan.sweeps:
            own = sweep.stage == step.step.part
            columns = _pass_columns(run, step.step, sweep, passes if own else 0)
            if sweep.words:
                block = np.arange(sweep.swept) // len(sweep.issue)
                columns["w_och_gcnt"] = step.weights[0][words + block]
                words += sweep.passes * sweep.words
            columns |= _touching(run, step, sweep)
            chunk.put(at, sweep.swept, state=RUN, if_set=step.side, **columns)
            at += sweep.cycles
            passes += sweep.passes

    def _put_fetches(self, run: LayerRun, step: Executed) -> None:
        """Adds the weight bus in this and earlier steps, then writes the chunks that are complete."""
        fetched = step.weights[1]
        if not any(len(block.weights) for block in run.blocks):
            self._flush(step.start + step.cycles)
        elif len(fetched):
            addresses = _weight_addresses(run, step.step, step.plan.sweeps)
            for chunk in self._waiting:
                inside = (fetched >= chunk.start) & (fetched < chunk.start + chunk.cycles)
                chunk.of("weight_valid")[fetched[inside] - chunk.start] = 1
                chunk.of("weight_addr")[fetched[inside] - chunk.start] = addresses[inside]
            self._flush(int(fetched[-1]))

    def _flush(self, known: int) -> None:
        """Writes the chunks that end no later than the last known fetch."""
        while self._waiting and self._waiting[0].start + self._waiting[0].cycles <= known:
            chunk = self._waiting.pop(0)
            self.writer.write(chunk.columns, chunk.cycles)


def _pass_columns(run: LayerRun, step: PadStep, sweep: Sweep, before: int) -> dict[str, Array | int]:
    """The controller's signals in the passes of a sweep; before: number of earlier passes of the same word."""
    rows = run.hardware.machine.pe_rows
    cycle = np.arange(sweep.swept)
    block, within = cycle // len(sweep.issue), cycle % len(sweep.issue)
    ozi, number = block % sweep.ozis, before + block // sweep.ozis
    position = sweep.position[within]
    of_a_row = -(-step.tile.positions // rows)
    stage = run.chain[sweep.stage]
    name, own = stage.name, sweep.stage == step.part
    columns: dict[str, Array | int] = {
        "instruction": stage.number,
        "pe_en": sweep.issue[within],
        "Pe_ps_addr": ozi * of_a_row + position // rows,
        "Pe_ps_back_en": int(not own),
        "Pe_ps_outer_en": int(name != "mul") * ((number == 0) & (step.first or not own)),
        "Pe_maxpool_en": int(name in ("maxpool", "relu")),
        "Pe_byp_mul_en": int(name in ("maxpool", "relu", "add")),
        "Pe_bias_mul_en": int(name == "mul"),
    }
    if own:
        addresses = pad_addresses(stage.layer, step.tile.y, step.tile.x)
        columns["if_hw_addr"] = addresses[number % len(addresses), position]
        columns["if_ch_addr"] = number // len(addresses)
        columns["cast_mode"] = int(run.dense)
    if not own or (sweep.result != NONE).any():
        columns["Pe_ps_shift_scale"] = _scales(run, step, sweep.stage if own else sweep.stage - 1)[ozi]
    return columns


def _scales(run: LayerRun, step: PadStep, stage: int) -> Array:
    """PE 0's scale for each ozi, by which the quantiser shifts a word's psums."""
    block = run.blocks[stage]
    match run.chain[stage].name:
        case "prelu" | "relu" | "maxpool":
            return np.zeros(run.parts[0].Zs, np.int64)
        case "act":
            return np.full(run.parts[0].Zs, int(block.parameters[-1, 0]))
        case _:
            scales = run.hardware.parameter_pads.scale(block.entries)[:, 0]
            return scales if run.dense else scales[step.group : step.group + 1]


def _touching(run: LayerRun, step: Executed, sweep: Sweep) -> dict[str, Array | int]:
    """The ofmap words on the bus and the operand words of a sweep."""
    touched = step.touched.get(sweep.stage)
    if touched is None or not ((sweep.result != NONE).any() or (sweep.operand != NONE).any()):
        return {}
    columns: dict[str, Array | int] = {}
    positions = step.step.tile.positions
    for prefix, at, addresses, place, count in (
        (
            "bus",
            sweep.result,
            touched.results,
            next(iter(run.targets[sweep.stage]), None),
            positions * sweep.writes,
        ),
        ("operand", sweep.operand, touched.operands, run.operands[sweep.stage], positions),
    ):
        ozi = np.repeat(np.arange(sweep.ozis), len(sweep.issue)) * count
        if addresses is not None and place is not None and (at != NONE).any():
            valid = np.tile(at != NONE, sweep.ozis)
            columns[f"{prefix}_valid"] = valid
            columns[f"{prefix}_memory"] = valid * int(place.place.memory == "skip")
            columns[f"{prefix}_addr"] = np.where(valid, addresses[ozi + np.tile(np.maximum(at, 0), sweep.ozis)], 0)
            if prefix == "bus":
                columns["bus_kind"] = valid * OFMAP
    return columns


def _put_loads(chunk: Chunk, cycles: Array, addresses: Array, memory: str) -> None:
    """Adds sub-ifmap words to the bus in these cycles of a chunk."""
    padding = addresses == NONE
    chunk.of("bus_valid")[cycles] = 1
    chunk.of("bus_kind")[cycles] = np.where(padding, PADDING, IFMAP)
    chunk.of("bus_memory")[cycles] = np.where(padding, 0, int(memory == "skip"))
    chunk.of("bus_addr")[cycles] = np.where(padding, 0, addresses)


def _weight_addresses(run: LayerRun, step: PadStep, sweeps: tuple[Sweep, ...]) -> Array:
    """The addresses of a step's weight words, in order of use."""
    found: list[Array] = []
    for stage in dict.fromkeys(sweep.stage for sweep in sweeps if sweep.words):
        count = sum(sweep.passes * sweep.words for sweep in sweeps if sweep.stage == stage)
        layer = run.chain[stage].layer
        per_group = layer.Hk * layer.Wk * (16 * layer.Zs if run.dense and stage == step.part else 1)
        first = step.group * per_group if stage == step.part or not run.dense else 0
        found.append(run.blocks[stage].weights_at + first + np.arange(count))
    return np.concatenate(found)
