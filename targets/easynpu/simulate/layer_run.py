"""A fused chain on the stepping simulator, from the decoding of its first word to its last result in the DTCM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.easynpu.machine.chains import Stage
from npuc.targets.easynpu.machine.memory import LANES, SLOPE_WORDS, Map, groups
from npuc.targets.easynpu.machine.rearrangement import SETUP
from npuc.targets.easynpu.machine.rules import POINTWISE
from npuc.targets.easynpu.machine.timing import DRAIN, is_dense, waiting
from npuc.targets.easynpu.simulate import datapath, streams
from npuc.targets.easynpu.simulate.events import Executed, LayerCount, Touched, Transfers
from npuc.targets.easynpu.simulate.hardware import Hardware
from npuc.targets.easynpu.simulate.refilling import Reads, arrivals
from npuc.targets.easynpu.simulate.scattering import Scatter
from npuc.targets.easynpu.simulate.schedule import (
    NONE,
    Access,
    PadStep,
    Plan,
    SubIfmap,
    Sweep,
    Tile,
    accumulating,
    pad_addresses,
    steps,
    window,
)
from npuc.targets.easynpu.simulate.streams import Block

COMBINING = ("add", "mul")
Key = tuple[int, int, int, int, bool]
"""Steps with the same key take the same cycles."""


def _key(step: PadStep) -> Key:
    return step.tile.y, step.tile.x, step.part, step.channels, step.last


class Watcher(Protocol):
    """An observer of everything that happens in a layer, in order."""

    def started(self, run: LayerRun, words: int) -> None:
        """The chain was decoded, and its parameters and first sub-ifmap were loaded."""
        ...

    def executed(self, run: LayerRun, step: Executed) -> None:
        """A step was executed."""
        ...

    def finished(self, run: LayerRun) -> None:
        """The last result was written."""
        ...

    def rearranged(self, number: int, words: int, transfers: Transfers) -> None:
        """A reshape word was executed; words: its instruction words, extension words included."""
        ...


class LayerRun:
    """One chain: `run` executes it; `results` are the int8 maps (Ho, Wo, groups, 16) of its words.

    A reshape behind other words has no pass of its own: it determines where the last word's results are written.
    """

    def __init__(self, hardware: Hardware, chain: Sequence[Stage], watcher: Watcher | None = None) -> None:
        machine, low = hardware.machine, hardware.low
        self.hardware = hardware
        self.end = chain[-1].number
        """The number of the last word."""
        target = None if chain[-1].leaves else chain[-1].ofmap(machine, not low)
        reshape = chain[-1].reshape
        self.scatter = Scatter.of(reshape, target) if reshape is not None and target is not None else None
        self.chain = chain = chain if reshape is None else chain[:-1]
        """The words that compute."""
        self.watcher = watcher
        self.parts = [stage.layer for stage in chain[: accumulating(chain)]]
        self.dense = is_dense(self.parts[0])
        self.sources = [stage.ifmap(machine, low) for stage in chain[: len(self.parts)]]
        self.operands = [stage.operand() if stage.name in COMBINING else None for stage in chain]
        self.targets = [[stage.stored()] if stage.layer.stored else [] for stage in chain]
        if target is not None:
            self.targets[-1].insert(0, target)
        shape = (self.parts[0].Ho, self.parts[0].Wo, groups(self.parts[0].Co), LANES)
        self.results = [np.zeros(shape, np.int8) for _ in chain]
        self.lanes = (np.arange(shape[2] * LANES) < self.parts[0].Co).reshape(shape[2], 1, LANES)
        self.count = LayerCount(chain[0].number)
        self.cycle = 0
        self.first_load = np.zeros(0, np.int64)
        self.blocks: list[Block] = []
        self.weights: list[Array] = []
        """Weights of each word: (Ci, taps, zs, 16), or channel-wise (groups, taps, 16)."""
        self._plans: dict[Key, Plan] = {}
        self._last_reads: dict[Key, Array] = {}
        self._arrivals: dict[tuple[Key, int, int, int], Array] = {}
        self._touched: dict[int, Touched] = {}
        self._at = (0, Tile(0, 0, 0, 0))

    def run(self, words: int) -> None:
        """Executes the chain, whose instructions take this many words.

        Raises ArtefactError (E503), with instruction and tile, for what the hardware could not do.
        """
        self._set_up(words)
        try:
            self._run(words)
        except ArtefactError as error:
            problem, (stage, tile) = error.problems[0], self._at
            where = f"instruction {self.chain[stage].number}, tile ({tile.oy}, {tile.ox})"
            remedy = "npuc dump shows every word"
            raise ArtefactError("E503", f"{where}: {problem.reason}", limit=problem.limit, remedy=remedy) from None

    def _run(self, words: int) -> None:
        """Executes every step while the next sub-ifmap is loaded, into the other set of pads if there is one."""
        sequence = steps(self.parts, takes=self.chain[0].takes, leaves=self.chain[-1].leaves)
        step, side = next(sequence), 0
        wanted = self._wanted(step)
        self.first_load = self._load(step, side, wanted, self.cycle + np.arange(len(wanted.entries)))
        self.cycle += len(self.first_load)
        if self.watcher is not None:
            self.watcher.started(self, words)
        while step is not None:
            following, other = next(sequence, None), (side + 1) % self.hardware.machine.ifmap_pad_sets
            self._execute(step, side, following, other)
            step, side = following, other
        self.cycle += DRAIN + self._late
        self._finish()
        if self.watcher is not None:
            self.watcher.finished(self)

    @property
    def _late(self) -> int:
        operand, targets = self.operands[-1], [each.place.memory for each in self.targets[-1]]
        late = operand is not None and operand.place.memory not in targets
        return late * (self.hardware.machine.pe_rows - 1)

    def _set_up(self, words: int) -> None:
        """Decodes, loads bias and scale, fetches the first weights (channel-wise: during the first sub-ifmap)."""
        hardware = self.hardware
        hardware.begin_layer()
        self.blocks, hardware.weights_at = streams.load(
            self.chain, hardware.weights_at, hardware.weight, hardware.parameter_pads
        )
        self.weights = [self._participating(at) for at in range(len(self.chain))]
        self.cycle = words + sum(block.cycles for block in self.blocks) + (SETUP if self.scatter else 0)
        self.count.weight_words = sum(len(block.parameters) for block in self.blocks)
        hardware.weight_pads.reset(self.cycle)
        self.cycle += self.parts[0].Zs if self.dense else 0

    def _participating(self, stage: int) -> Array:
        """A word's weights, 0 for the PEs that are unused in the last group of output channels."""
        layer, weights = self.chain[stage].layer, self.blocks[stage].weights
        if is_dense(layer):
            return weights.reshape(layer.Ci, -1, layer.Zs, LANES) * self.lanes[:, 0]
        return weights.reshape(len(self.lanes), -1, LANES) * self.lanes

    def _execute(self, step: PadStep, side: int, following: PadStep | None, other: int) -> None:
        """Executes a step. side: the set of pads that it reads; other: the set of the following step."""
        plan = self._plan(step)
        first, last = plan.weight_uses
        weights = first, last
        if len(first):
            weights = self.hardware.weight_pads.stream(self.cycle + first, self.cycle + last)
        self._touched = {}
        self._accumulate(step, side)
        if step.last:
            self._continue(step)
        load = loaded = np.zeros(0, np.int64)
        cycles, source = plan.cycles, self.sources[0].place.memory
        if following is not None:
            wanted = self._wanted(following)
            loaded, source = self._arriving(step, following, wanted), self.sources[following.part].place.memory
            load = self._load(following, other, wanted, self.cycle + loaded)
            cycles = max(cycles, int(loaded[-1]) + 1)
        if self.watcher is not None:
            done = Executed(step, plan, self.cycle, cycles, side, load, loaded, source, weights, self._touched)
            self.watcher.executed(self, done)
        self.cycle += cycles
        self.count.compute_cycles += plan.compute
        self.count.weight_words += len(first)

    def _arriving(self, step: PadStep, following: PadStep, wanted: SubIfmap) -> Array:
        """The cycles, counted from the step's first, in which the words of the next sub-ifmap are loaded."""
        key = (_key(step), following.part, following.tile.y, following.tile.x)
        if key not in self._arrivals:
            single = self.hardware.machine.ifmap_pad_sets == 1
            lowest = self._reads(step).lowest() if single else None
            self._arrivals[key] = arrivals(self._plan(step), wanted.entries, lowest)
        return self._arrivals[key]

    def _reads(self, step: PadStep) -> Reads:
        return Reads(step, self.parts[step.part], self._plan(step), self.hardware.machine)

    def _plan(self, step: PadStep) -> Plan:
        """The sweeps of a step; the same for steps with the same key."""
        key = _key(step)
        if key not in self._plans:
            layer = self.parts[step.part]
            passes = step.channels * layer.Hk * layer.Wk
            sweeps = [self._sweep(step, step.part, passes - step.last, Access())]
            if step.last:
                sweeps += [self._sweep(step, at, 1, self._access(at)) for at in range(step.part, len(self.chain))]
                sweeps[1:-1] = [
                    replace(sweep, wait=int(waiting(sweep.ozis * sweep.compute))) for sweep in sweeps[1:-1]
                ]
            self._plans[key] = Plan(tuple(sweep for sweep in sweeps if sweep.passes))
        return self._plans[key]

    def _sweep(self, step: PadStep, stage: int, passes: int, access: Access) -> Sweep:
        ozis = self.parts[0].Zs if self.dense else 1
        words = ozis if len(self.blocks[stage].weights) else 0
        source = self.sources[0].place.memory
        return Sweep.of(stage, passes, ozis, words, access, step.tile.positions, source, self.hardware.machine)

    def _access(self, stage: int) -> Access:
        operand = self.operands[stage]
        results = frozenset(each.place.memory for each in self.targets[stage])
        writes = self.scatter.writes if self.scatter is not None and stage == len(self.chain) - 1 else 1
        return Access(None if operand is None else operand.place.memory, results, writes)

    def _wanted(self, step: PadStep) -> SubIfmap:
        """The sub-ifmap that a step reads."""
        self._at = step.part, step.tile
        return window(self.parts[step.part], step.tile)

    def _load(self, step: PadStep, side: int, wanted: SubIfmap, cycles: Array) -> Array:
        """Fills a set of ifmap pads, a word in each of these cycles; returns the addresses, NONE for padding."""
        stage, source = self.chain[step.part], self.sources[step.part].place
        values = np.full((len(wanted.entries), LANES), -128 if stage.name == "maxpool" else 0, np.int8)
        at = source.base + wanted.iy * source.row + wanted.ix * source.pixel + step.group * source.group
        if len(at):
            values[wanted.inside] = self.hardware.dtcm(source.memory).read(at)
        self.hardware.ifmap_pads.load(side, wanted.entries, values, cycles)
        self.count.ifmap_words += len(at)
        self.count.padding_words += len(values) - len(at)
        addresses = np.full(len(values), NONE)
        addresses[wanted.inside] = at
        return addresses

    def _accumulate(self, step: PadStep, side: int) -> None:
        """Executes the passes over kzi, hki, wki: psums (zs, positions, 16) in the psum file."""
        stage, layer = self.chain[step.part], self.parts[step.part]
        self._at = step.part, step.tile
        key = _key(step)
        if key not in self._last_reads:
            self._last_reads[key] = self._reads(step).last()
        entries, last = pad_addresses(layer, step.tile.y, step.tile.x), self.cycle + self._last_reads[key]
        ifmap = self.hardware.ifmap_pads.read(side, entries, last)
        if stage.name in POINTWISE:
            self._write_psums(self._applied(step.part, ifmap.astype(np.int64), step))
            return
        before = self._bias(step) if step.first else self._psums(step)
        weights = self.weights[step.part]
        if stage.name == "maxpool":
            psums = datapath.largest(before, ifmap)
        elif self.dense:
            first = step.group * LANES
            psums = datapath.broadcast(before, ifmap, weights[first : first + step.channels])
        else:
            psums = datapath.multicast(before, ifmap, weights[step.group])
        self._write_psums(psums)

    def _continue(self, step: PadStep) -> None:
        """Computes the last pass's results, then the passes of the fused words, each on the int8 before it."""
        x = self._result(step.part, step)
        for stage in range(step.part + 1, len(self.chain)):
            self._at = stage, step.tile
            self._write_psums(self._applied(stage, x, step))
            x = self._result(stage, step)

    def _applied(self, stage: int, x: Array, step: PadStep) -> Array:
        """Psums of a pointwise word on int8 values (zs, positions, 16)."""
        block, rows = self.blocks[stage], self._rows(step)
        match self.chain[stage].name:
            case "relu":
                return np.maximum(x, 0)
            case "act":
                return datapath.tabulated(block.parameters, x)
            case "prelu":
                slopes = block.parameters.reshape(-1, SLOPE_WORDS, LANES) * self.lanes
                return datapath.sloped(slopes[rows], x)
            case "add":
                return x + self._operand(stage, step)
            case "mul":
                return x * self._operand(stage, step)
            case _:  # batch normalisation
                bias = self.hardware.parameter_pads.bias(block.entries)[rows]
                return x * self.weights[stage][rows].astype(np.int64) + (bias * self.lanes[rows, 0])[:, None]

    def _operand(self, stage: int, step: PadStep) -> Array:
        """The second operand (zs, positions, 16), read at the result's position in its own map."""
        operand = self.operands[stage]
        assert operand is not None
        at = self._addresses(operand, step)
        self.count.operand_words += at.size
        self._touched[stage] = Touched(at.ravel(), None)
        return self.hardware.dtcm(operand.place.memory).read(at).astype(np.int64)

    def _result(self, stage: int, step: PadStep) -> Array:
        """int8 values (zs, positions, 16) of the psums, recorded and written to the word's maps."""
        x = self._quantised(stage, step) * self.lanes[self._rows(step)]
        tile, rows = step.tile, self._rows(step)
        planes = x.reshape(len(x), tile.y, tile.x, LANES).transpose(1, 2, 0, 3)
        self.results[stage][tile.oy : tile.oy + tile.y, tile.ox : tile.ox + tile.x, rows] = planes
        for position, target in enumerate(self.targets[stage]):
            memory = self.hardware.dtcm(target.place.memory)
            if self.scatter is not None and position == 0 and stage == len(self.chain) - 1:
                at = self.scatter.write(memory, tile, rows, x)
            else:
                at = self._addresses(target, step)
                memory.write(at, x)
            if position == 0:
                self.count.ofmap_words += at.size
                before = self._touched.get(stage, Touched(None, None))
                self._touched[stage] = Touched(before.operands, at.ravel())
        return x

    def _quantised(self, stage: int, step: PadStep) -> Array:
        """int8 values of the psums with the word's scale, and with the ReLU of a convolution that has one."""
        block, psums, layer = self.blocks[stage], self._psums(step), self.chain[stage].layer
        match self.chain[stage].name:
            case "prelu" | "relu" | "maxpool":
                return np.clip(psums, -128, 127)
            case "act":
                scale = np.full((len(psums), LANES), block.parameters[-1, 0], np.int64)
            case _:
                scale = self.hardware.parameter_pads.scale(block.entries)[self._rows(step)]
                scale = scale * self.lanes[self._rows(step), 0]
        x = datapath.requantised(psums, scale)
        operation = layer.operation
        return np.maximum(x, 0) if operation is not None and operation.mnemonic.endswith("_relu") else x

    def _addresses(self, where: Map, step: PadStep) -> Array:
        """The addresses (zs, positions) of the tile's pixels in an output-sized map."""
        place, tile = where.place, step.tile
        rows, columns = tile.oy + np.arange(tile.y), tile.ox + np.arange(tile.x)
        pixels = (place.row * rows[:, None] + place.pixel * columns).ravel()
        ozis = np.arange(where.groups)[self._rows(step)]
        return place.base + place.group * ozis[:, None] + pixels

    def _rows(self, step: PadStep) -> slice:
        """The groups of output channels of the step's psums: all, or, channel-wise, the step's own."""
        return slice(None) if self.dense else slice(step.group, step.group + 1)

    def _bias(self, step: PadStep) -> Array:
        """Psums (zs, positions, 16) before the first pass: the bias alone."""
        bias = self.hardware.parameter_pads.bias(self.blocks[step.part].entries)[self._rows(step)]
        bias = bias * self.lanes[self._rows(step), 0]
        self.hardware.psums.clear()
        return np.repeat(bias[:, None], step.tile.positions, axis=1)

    def _psums(self, step: PadStep) -> Array:
        return self.hardware.psums.read(self.parts[0].Zs if self.dense else 1, step.tile.positions)

    def _write_psums(self, psums: Array) -> None:
        datapath.expect_32_bits(psums)
        self.hardware.psums.write(psums)

    def _finish(self) -> None:
        hardware, count = self.hardware, self.count
        hardware.end_layer()
        if self.scatter is not None:
            target = self.targets[-1][0]
            self.results.append(hardware.dtcm(target.place.memory).read(target.grid))
        count.cycles = self.cycle
        count.ifmap_pad_entries = hardware.ifmap_pads.most
        count.weight_pad_entries = hardware.weight_pads.most
        count.psum_entries = hardware.psums.most
        count.parameter_pad_entries = hardware.parameter_pads.most
