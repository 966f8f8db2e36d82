"""A slow EasyNPU: the document's loop nest, one word of 16 lanes at a time, on tiles, pads and psums.

It shares no code with npuc: bit positions, addresses and rounding are written down again from the document and
the decisions on what it leaves open. Psums are 64 bits wide; a value that leaves 32 bits fails an assertion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# field: (low bit, width, what is added to the stored value)
LAYER = {
    "opcode": (0, 8, 0), "Sh": (8, 4, 0), "Sw": (12, 4, 0), "Ph": (16, 4, 0), "Pw": (20, 4, 0),
    "Dh": (24, 4, 0), "Dw": (28, 4, 0), "y": (32, 6, 1), "x": (38, 6, 1), "yi": (44, 6, 1), "xi": (50, 6, 1),
    "Hk": (56, 8, 1), "Wk": (64, 8, 1), "Ho": (72, 8, 1), "Wo": (80, 8, 1), "Co": (88, 8, 1), "Ci": (96, 8, 1),
    "Zs": (104, 8, 1), "Hi": (112, 8, 1), "Wi": (120, 8, 1),
}  # fmt: skip
OPERAND = {
    "opcode": (0, 8, 0), "memory": (8, 8, 0), "base": (16, 24, 0), "row": (40, 24, 0), "pixel": (64, 24, 0),
    "group": (88, 24, 0), "reserved": (112, 16, 0),
}  # fmt: skip
RESHAPE = {
    "opcode": (0, 8, 0), "perm": (8, 5, 0), "minor": (16, 4, 0), "insert": (20, 4, 0),
    "split_n": (32, 8, 1), "split_h": (40, 8, 1), "split_w": (48, 8, 1), "split_c": (56, 8, 1), "onto": (64, 8, 0),
    "Ho": (72, 8, 1), "Wo": (80, 8, 1), "Co": (88, 8, 1), "Ci": (96, 8, 1), "Hi": (112, 8, 1), "Wi": (120, 8, 1),
}  # fmt: skip
CONTROL = {
    "opcode": (0, 8, 0), "keep": (8, 1, 0), "set": (9, 1, 0), "take": (10, 1, 0), "flags": (11, 5, 0),
    "weights": (16, 24, 0),
}  # fmt: skip

CONV, CONV_RELU, DWCONV, DWCONV_RELU = 0x00, 0x04, 0x01, 0x05
BN, RELU, ACT, MAXPOOL, AVGPOOL, ADD, MUL, PRELU = 0x02, 0x06, 0x0A, 0x0E, 0x12, 0x16, 0x1A, 0x1E
FUSED, STORED = 0x20, 0x40
RESHAPED = 0x80
SRC, DST, OPB, STO, CTL, HALT = 0xC0, 0xC1, 0xC2, 0xC3, 0xC4, 0xFF


def word(table: Mapping[str, tuple[int, int, int]], **values: int) -> int:
    """The 128-bit word with these fields."""
    value = 0
    for name, number in values.items():
        low, width, more = table[name]
        assert 0 <= number - more < 1 << width, (name, number)
        value |= (number - more) << low
    return value


def fields(table: Mapping[str, tuple[int, int, int]], value: int) -> dict[str, int]:
    """The fields of a 128-bit word."""
    return {name: (value >> low) % (1 << width) + more for name, (low, width, more) in table.items()}


def words(image: bytes) -> list[int]:
    """The 128-bit words of itcm.bin."""
    return [int.from_bytes(image[at : at + 16], "little") for at in range(0, len(image), 16)]


def lanes(image: bytes) -> Array:
    """The words of weight.bin as (words, 16) int64."""
    return np.frombuffer(image, np.int8).reshape(-1, 16).astype(np.int64)


def rounded(total: Array, scale: Array) -> Array:
    """int8: shifted left, or right with rounding half up, and saturated."""
    right, left = np.maximum(-scale, 0), np.maximum(scale, 0)
    half = np.where(right > 0, 1 << np.maximum(right - 1, 0), 0)
    return np.clip(((total << left) + half) >> right, -128, 127)


def permutations_of_four() -> list[tuple[int, ...]]:
    """In lexicographic order."""
    return sorted(permutations(range(4)))


def restacked(x: Array, word: Mapping[str, int]) -> Array:
    """A map (H, W, C) as a reshape word orders it: the tiles are carried one pile at a time.

    Every dimension, the last first, is taken apart into its piles, which are put behind one another along the
    dimension they are stacked on, or dealt out in turn between the slices that lie there.
    """
    tiles = x[None].transpose(permutations_of_four()[word["perm"]])
    for axis in (3, 2, 1, 0):
        parts, onto = word["split_" + "nhwc"[axis]], word["onto"] >> (2 * axis) & 3
        if word["minor"] >> axis & 1:
            piles = [np.take(tiles, range(first, tiles.shape[axis], parts), axis) for first in range(parts)]
        else:
            piles = np.split(tiles, parts, axis)
        if word["insert"] >> axis & 1:
            slices = [np.split(pile, pile.shape[onto], onto) for pile in piles]
            tiles = np.concatenate([each for turn in zip(*slices, strict=True) for each in turn], onto)
        else:
            tiles = np.concatenate(piles, onto)
    assert tiles.shape == (1, word["Ho"], word["Wo"], word["Co"])
    return tiles[0]


@dataclass
class Stage:
    """A layer word, the extension words before it, and where its weight stream starts."""

    layer: Mapping[str, int]
    operands: Mapping[int, Mapping[str, int]]
    keep: bool
    set_weights: int | None
    take: bool = False
    block: int = 0

    @property
    def op(self) -> int:
        return self.layer["opcode"] & 0x1F

    @property
    def dense(self) -> bool:
        return self.op & 3 == 0

    @property
    def groups(self) -> int:
        return -(-self.layer["Co"] // 16)

    @property
    def stream(self) -> int:
        """Words of bias-scale block and weights, of a table, or of slopes."""
        if self.op in (ACT, PRELU):
            return 7 if self.op == ACT else 4 * self.groups
        taps = self.layer["Hk"] * self.layer["Wk"]
        if self.op in (CONV, CONV_RELU):
            return self.groups * (5 + self.layer["Ci"] * taps)
        if self.op in (DWCONV, DWCONV_RELU, BN, AVGPOOL):
            return self.groups * (5 + taps)
        return 5 * self.groups if self.op in (ADD, MUL) else 0


@dataclass
class Npu:
    """One machine: its three DTCMs as (words, 16) int64, changed in place by `run`."""

    fmap: Array
    skip: Array
    weight: Array
    low: bool = True
    stream: int = 0
    kept: Array | None = None
    """Psums that a chain of one tile has left."""
    results: list[Array] = field(default_factory=list[Array])
    """The result (Ho, Wo, Co) of every layer word that gives one, in order."""

    def run(self, program: Sequence[int]) -> None:
        """Runs the words up to a halt."""
        chain: list[Stage] = []
        operands: dict[int, Mapping[str, int]] = {}
        control: Mapping[str, int] = {"keep": 0, "set": 0, "take": 0, "weights": 0}
        for value in program:
            opcode = value & 0xFF
            if opcode == HALT:
                break
            if opcode in (SRC, DST, OPB, STO):
                operands[opcode] = fields(OPERAND, value)
            elif opcode == CTL:
                control = fields(CONTROL, value)
            elif opcode == RESHAPED:
                self._reshape(fields(RESHAPE, value), chain, operands)
                chain, operands = [], {}
            else:
                pointer = control["weights"] if control["set"] else None
                chain.append(
                    Stage(fields(LAYER, value), operands, bool(control["keep"]), pointer, bool(control["take"]))
                )
                operands, control = {}, {"keep": 0, "set": 0, "take": 0, "weights": 0}
                if not opcode & FUSED:
                    self._chain(chain)
                    chain = []

    def _reshape(self, word: Mapping[str, int], chain: list[Stage], operands: Any) -> None:
        """Alone: a map from the current end to the other one. Behind words: their result, which is not written."""
        size = (word["Hi"], word["Wi"], word["Ci"])
        stage = Stage(word, operands, False, None)
        if chain:
            target = self._address(chain[-1], DST, ("fmap", not self.low), (size[1], size[2]))[0]
            kept = target.copy()
            low = self.low
            self._chain(chain)
            target[:] = kept
            self.low, x = low, self.results[-1]
        else:
            memory, at = self._address(stage, SRC, ("fmap", self.low), (size[1], size[2]))
            pixels = product(range(size[0]), range(size[1]))
            depth = -(-size[2] // 16)
            lanes = [np.concatenate([memory[at(iy, ix, g)] for g in range(depth)]) for iy, ix in pixels]
            x = np.stack(lanes).reshape(*size[:2], -1)[..., : size[2]]
        tiles = restacked(x, word)
        self.results.append(tiles)
        padded = np.zeros((*tiles.shape[:2], stage.groups * 16), np.int64)
        padded[..., : tiles.shape[2]] = tiles
        self._write(stage, DST, ("fmap", not self.low), padded)
        if DST not in operands:
            self.low = not self.low

    def _chain(self, chain: Sequence[Stage]) -> None:
        for stage in chain:
            self.stream = self.stream if stage.set_weights is None else stage.set_weights
            stage.block, self.stream = self.stream, self.stream + stage.stream
        head, last = chain[0].layer, chain[-1].layer
        shape = (head["Ho"], head["Wo"], chain[0].groups * 16)
        results = [np.zeros(shape, np.int64) for _ in chain]
        source_end, to_end = self.low, not self.low
        for oy, ox in product(range(0, head["Ho"], head["y"]), range(0, head["Wo"], head["x"])):
            tile = (oy, ox, min(head["y"], head["Ho"] - oy), min(head["x"], head["Wo"] - ox))
            self._tile(chain, tile, source_end, results)
        # nothing that the chain reads may be overwritten by it, so what it wrote tile by tile appears at its end
        for stage, result in zip(chain, results, strict=True):
            result[..., stage.layer["Co"] :] = 0
            if stage.layer["opcode"] & STORED:
                self._write(stage, STO, ("skip", True), result)
            if not stage.keep:
                self.results.append(result[..., : stage.layer["Co"]])
        if chain[-1].keep:
            return
        self._write(chain[-1], DST, ("fmap", to_end), results[-1])
        if DST not in chain[-1].operands:
            self.low = to_end
        assert (last["Ho"], last["Wo"], last["Co"]) == (head["Ho"], head["Wo"], head["Co"])

    def _address(self, stage: Stage, role: int, end: tuple[str, bool], size: tuple[int, int]) -> Any:
        """(memory, function of row, column and group) of an operand; size: (width, channels) of its map."""
        if role in stage.operands:
            at = stage.operands[role]
            memory = (self.fmap, self.skip)[at["memory"]]
            return memory, lambda iy, ix, g: at["base"] + iy * at["row"] + ix * at["pixel"] + g * at["group"]
        memory = {"fmap": self.fmap, "skip": self.skip}[end[0]]
        width, depth = size[0], -(-size[1] // 16)
        logical = lambda iy, ix, g: (iy * width + ix) * depth + g  # noqa: E731
        return memory, logical if end[1] else lambda iy, ix, g: len(memory) - 1 - logical(iy, ix, g)

    def _write(self, stage: Stage, role: int, end: tuple[str, bool], result: Array) -> None:
        memory, at = self._address(stage, role, end, (stage.layer["Wo"], stage.layer["Co"]))
        for oy, ox, g in product(range(result.shape[0]), range(result.shape[1]), range(stage.groups)):
            memory[at(oy, ox, g)] = result[oy, ox, 16 * g : 16 * g + 16]

    def _tile(
        self, chain: Sequence[Stage], tile: tuple[int, int, int, int], low: bool, results: Sequence[Array]
    ) -> None:
        """One sub-ofmap through all stages of the chain: psums, or int8 from stage to stage."""
        oy, ox, y, x = tile
        psums = self.kept if chain[0].take else None
        value = np.zeros(0, np.int64)
        for position, (stage, result) in enumerate(zip(chain, results, strict=True)):
            if stage.op in (ADD, MUL, ACT, PRELU):
                if position == 0:
                    value = self._window_reads(stage, tile, low)
                value = (
                    self._pairwise(stage, tile, value) if stage.op in (ADD, MUL) else self._function(stage, value)
                )
            elif position == 0 or psums is not None:
                total = self._subconv(stage, tile, low, psums)
                psums = total if stage.keep else None
                value = total if stage.keep else self._output(stage, total)
            else:
                value = self._output(stage, self._follow(stage, value))
            result[oy : oy + y, ox : ox + x] = value.transpose(1, 2, 0, 3).reshape(y, x, -1)
        self.kept = psums

    def _pads(self, stage: Stage, tile: tuple[int, int, int, int], low: bool, group: int) -> Array:
        """The 16 ifmap pads filled with one 16-channel group of the sub-ifmap: (y', x', 16)."""
        layer, (oy, ox, y, x) = stage.layer, tile
        memory, at = self._address(stage, SRC, ("fmap", low), (layer["Wi"], layer["Ci"]))
        rows = layer["Sh"] * (y - 1) + (layer["Dh"] + 1) * (layer["Hk"] - 1) + 1
        columns = layer["Sw"] * (x - 1) + (layer["Dw"] + 1) * (layer["Wk"] - 1) + 1
        outside = -128 if stage.op == MAXPOOL else 0
        pads = np.full((rows, columns, 16), outside, np.int64)
        for iyi, ixi in product(range(rows), range(columns)):
            iy, ix = layer["Sh"] * oy + iyi - layer["Ph"], layer["Sw"] * ox + ixi - layer["Pw"]
            if 0 <= iy < layer["Hi"] and 0 <= ix < layer["Wi"]:
                pads[iyi, ixi] = memory[at(iy, ix, group)]
        return pads

    def _taps(self, stage: Stage) -> Iterator[tuple[int, int, int, int]]:
        """hki, wki and the place of that tap in the pad."""
        layer = stage.layer
        for hki, wki in product(range(layer["Hk"]), range(layer["Wk"])):
            yield hki, wki, hki * (layer["Dh"] + 1), wki * (layer["Dw"] + 1)

    def _subconv(self, stage: Stage, tile: tuple[int, int, int, int], low: bool, psums: Array | None) -> Array:
        """Psums [ozi][oyi][oxi] of 16 PEs each."""
        layer, (_, _, y, x), zs = stage.layer, tile, stage.groups
        Hk, Wk, Sh, Sw = (layer[key] for key in ("Hk", "Wk", "Sh", "Sw"))
        start = -128 if stage.op == MAXPOOL else 0
        total = np.full((zs, y, x, 16), start, np.int64) if psums is None else psums.copy()
        if stage.stream:
            total += self._bias(stage)[:, None, None]
        weights = stage.block + 5 * zs
        if not stage.dense:  # multicast: PE i reads pad i
            for g in range(zs):
                pads = self._pads(stage, tile, low, g)
                for hki, wki, dy, dx in self._taps(stage):
                    for oyi, oxi in product(range(y), range(x)):
                        ifmap = pads[Sh * oyi + dy, Sw * oxi + dx]
                        if stage.op == MAXPOOL:
                            total[g, oyi, oxi] = np.maximum(total[g, oyi, oxi], ifmap)
                        elif stage.op == RELU:
                            total[g, oyi, oxi] = ifmap
                        else:
                            total[g, oyi, oxi] += ifmap * self.weight[weights + (g * Hk + hki) * Wk + wki]
            return total
        for kz in range(0, layer["Ci"], 16):  # broadcast: all PEs read pad kzi
            pads = self._pads(stage, tile, low, kz // 16)
            for kzi in range(min(16, layer["Ci"] - kz)):
                for hki, wki, dy, dx in self._taps(stage):
                    for ozi in range(zs):
                        w = self.weight[weights + (((kz + kzi) * Hk + hki) * Wk + wki) * zs + ozi]
                        for oyi, oxi in product(range(y), range(x)):
                            total[ozi, oyi, oxi] += pads[Sh * oyi + dy, Sw * oxi + dx, kzi] * w
        return total

    def _window_reads(self, stage: Stage, tile: tuple[int, int, int, int], low: bool) -> Array:
        return np.stack([self._pads(stage, tile, low, g) for g in range(stage.groups)])

    def _pairwise(self, stage: Stage, tile: tuple[int, int, int, int], value: Array) -> Array:
        layer, (oy, ox, y, x) = stage.layer, tile
        memory, at = self._address(stage, OPB, ("skip", True), (layer["Wo"], layer["Co"]))
        total = value.copy()
        for g, oyi, oxi in product(range(stage.groups), range(y), range(x)):
            other = memory[at(oy + oyi, ox + oxi, g)]
            total[g, oyi, oxi] = value[g, oyi, oxi] + other if stage.op == ADD else value[g, oyi, oxi] * other
        return self._output(stage, total + self._bias(stage)[:, None, None])

    def _follow(self, stage: Stage, value: Array) -> Array:
        """A fused stage without a map of its own: multiplier and bias on the int8 that is fed back, or ReLU."""
        if stage.op == RELU:
            return value
        first = stage.block + 5 * stage.groups
        w = self.weight[first : first + stage.groups]
        return value * w[:, None, None] + self._bias(stage)[:, None, None]

    def _function(self, stage: Stage, value: Array) -> Array:
        """A table (the segment is the number of starts behind the first that x has reached), or slopes by sign."""
        words = self.weight[stage.block : stage.block + stage.stream]
        if stage.op == ACT:
            unsigned = np.asarray(sum((words[j] & 0xFF) << (8 * j) for j in range(4)))
            b = unsigned - ((unsigned >> 31) << 32)
            segment = (value[..., None] >= words[5, 1:]).sum(axis=-1)
            return rounded(words[4][segment] * value + b[segment], np.full(value.shape, words[6, 0]))
        planes = words.reshape(-1, 4, 1, 1, 16)  # (zs, 4, 1, 1, 16)
        above, below = (
            rounded(value * planes[:, j], np.broadcast_to(planes[:, j + 1], value.shape)) for j in (0, 2)
        )
        return np.where(value < 0, below, above)

    def _bias(self, stage: Stage) -> Array:
        """(zs, 16): four byte planes, least significant first."""
        planes = self.weight[stage.block : stage.block + 5 * stage.groups].reshape(-1, 5, 16)
        unsigned = sum((planes[:, j] & 0xFF) << (8 * j) for j in range(4))
        return np.asarray(unsigned) - ((np.asarray(unsigned) >> 31) << 32)

    def _output(self, stage: Stage, total: Array) -> Array:
        """int8 of psums (zs, y, x, 16): shifted, rounded half up, saturated; the larger of it and 0 for ReLU."""
        assert np.abs(total).max(initial=0) < 1 << 31, "a psum leaves 32 bits"
        if stage.stream:
            scale = self.weight[stage.block : stage.block + 5 * stage.groups].reshape(-1, 5, 16)[:, 4]
            total = rounded(total, np.broadcast_to(scale[:, None, None], total.shape))
        return np.maximum(total, 0) if stage.op in (CONV_RELU, DWCONV_RELU, RELU) else total
