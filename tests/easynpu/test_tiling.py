"""Tiles and cycles: the reference's table, and a brute-force proof of every optimum in plain loops."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.errors import DoesNotFit
from npuc.targets.easynpu.layers.tiling import best_tile, with_tile
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import Followers, PortUse, chain_cost, port_use

DEFAULT = Machine()
CONV, DEPTHWISE, MAXPOOL, AVGPOOL, ADD = 0x00, 0x01, 0x0E, 0x12, 0x16


def square(
    opcode: int, size: int, kernel: int, stride: int, pad: int, Ci: int, Co: int, dilation: int = 1
) -> Layer:
    """A layer with square map, kernel, stride, padding on all sides and dilation as ONNX counts it."""
    out = (size + 2 * pad - ((kernel - 1) * dilation + 1)) // stride + 1
    return Layer(
        opcode=opcode,
        Sh=stride, Sw=stride, Ph=pad, Pw=pad, Dh=dilation - 1, Dw=dilation - 1, Hk=kernel, Wk=kernel,
        Hi=size, Wi=size, Ci=Ci, Ho=out, Wo=out, Co=Co, Zs=-(-Co // 16),
    )  # fmt: skip


# Layer, legal tiles, cycles of the best one. Source: reference, section 5 (psum 64).
TABLE = {
    "3x3 s1 32x32 16>16": (square(CONV, 32, 3, 1, 1, 16, 16), 92, 147478),
    "3x3 s1 14x14 64>64": (square(CONV, 14, 3, 1, 1, 64, 64), 46, 451621),
    "3x3 s1 4x4 256>256": (square(CONV, 4, 3, 1, 1, 256, 256), 8, 589933),
    "3x3 s2 32x32 16>32": (square(CONV, 32, 3, 2, 1, 16, 32), 29, 73753),
    "3x3 s2 32x32 3>16": (square(CONV, 32, 3, 2, 1, 3, 16), 29, 6937),
    "5x5 s1 28x28 16>16": (square(CONV, 28, 5, 1, 2, 16, 16), 30, 313640),
    "5x5 s1 28x28 1>6": (square(CONV, 28, 5, 1, 2, 1, 6), 30, 19640),
    "7x7 s1 16x16 16>16": (square(CONV, 16, 7, 1, 3, 16, 16), 6, 200770),
    "7x7 s2 64x64 3>16": (square(CONV, 64, 7, 2, 3, 3, 16), 3, 150601),
    "3x3 d2 16x16 16>16": (square(CONV, 16, 3, 1, 2, 16, 16, 2), 30, 36904),
    "FC 256>10": (square(CONV, 1, 1, 1, 0, 256, 10), 1, 523),
    "DW3x3 s1 16x16x32": (square(DEPTHWISE, 16, 3, 1, 1, 32, 32), 86, 4634),
    "DW3x3 s2 16x16x32": (square(DEPTHWISE, 16, 3, 2, 1, 32, 32), 25, 1181),
    "DW5x5 16x16x32": (square(DEPTHWISE, 16, 5, 1, 2, 32, 32), 30, 12844),
    "pool3x3 s2 p1 16x16x16": (square(MAXPOOL, 16, 3, 2, 1, 16, 16), 25, 600),
    "GAP 7x7x64": (square(AVGPOOL, 7, 7, 1, 0, 64, 64), 1, 465),
}
# Rows in which the reference's machine takes longer: its value, ours. It has one set of pads, whose entries are
# overwritten as they become free: a tile of a 1x1 kernel waits one cycle, tiles with dilation 3 wait longer. With
# a second set no tile waits: compute cycles + decode 1 + 6*Zs + the first sub-ifmap + drain 3. Its formula also
# charges the last tile for a load under it, where nothing is left to load: that shows where the bus is the limit.
FASTER = {
    "1x1 16x16 16>16": (square(CONV, 16, 1, 1, 0, 16, 16), 142, 4138, 16 * 256 + 1 + 6 + 2 + 3),
    "1x1 14x14 64>128": (square(CONV, 14, 1, 1, 0, 64, 128), 20, 100439, 64 * 8 * 196 + 1 + 48 + 1 + 3),
    "1x1 8x8 128>256": (square(CONV, 8, 1, 1, 0, 128, 256), 8, 131192, 128 * 16 * 64 + 1 + 96 + 1 + 3),
    "3x3 d3 16x16 16>16": (square(CONV, 16, 3, 1, 3, 16, 16, 3), 6, 37002, 16 * 9 * 256 + 1 + 6 + 7 * 8 + 3),
    "FC 256>256": (square(CONV, 1, 1, 1, 0, 256, 256), 1, 4198, 256 * 16 + 1 + 96 + 1 + 3),
    # 31 tiles of 1 x 2: 2 words written and 8 loaded; the last one: 8 cycles of computing
    "pool2x2 s2 16x16x16": (square(MAXPOOL, 16, 2, 2, 0, 16, 16), 34, 337, 31 * (2 + 8) + 8 + 1 + 5 + 8 + 3),
    # 255 tiles of 1 x 2: 2 words written and 2 loaded; the last one: 2 cycles of computing
    "eltwise 16x16x32": (square(ADD, 16, 1, 1, 0, 32, 32), 142, 1039, 255 * (2 + 2) + 2 + 1 + 10 + 2 + 3),
}


@pytest.mark.parametrize("row", TABLE)
def test_a_row_of_the_references_table_has_its_tiles_and_cycles(row: str) -> None:
    layer, candidates, cycles = TABLE[row]
    _, found = best_tile([layer], DEFAULT, Followers())
    assert (found.candidates, found.fewest_cycles) == (candidates, cycles)


@pytest.mark.parametrize("row", FASTER)
def test_a_second_set_of_pads_and_nothing_to_load_at_the_end_save_cycles(row: str) -> None:
    layer, candidates, reference, cycles = FASTER[row]
    _, found = best_tile([layer], DEFAULT, Followers())
    assert (found.candidates, found.fewest_cycles) == (candidates, cycles)
    assert 0.992 * reference < cycles < reference


# The checker: every step of every tile, one after the other, as docs/decisions.md (cycles) has them.


def _legal(layer: Layer, y: int, x: int, machine: Machine) -> bool:
    zs = -(-layer.Co // 16) if layer.opcode & 3 == 0 else 1
    rows = layer.Sh * (y - 1) + (layer.Dh + 1) * (layer.Hk - 1) + 1
    columns = layer.Sw * (x - 1) + (layer.Dw + 1) * (layer.Wk - 1) + 1
    return (
        zs * -(-y * x // machine.pe_rows) <= machine.psum_entries
        and rows * columns <= machine.ifmap_pad_entries
        and max(rows, columns, y, x) <= 64
        and y <= layer.Ho
        and x <= layer.Wo
    )


class _Step(NamedTuple):
    """16 channels of a word for a tile of y by x; uses: of its last pass and those behind it."""

    word: Layer
    y: int
    x: int
    pitch: int
    channels: int
    uses: tuple[PortUse, ...] = (PortUse(),)

    @property
    def taps(self) -> int:
        return self.word.Hk * self.word.Wk

    @property
    def zs(self) -> int:
        return -(-self.word.Co // 16) if self.word.opcode & 3 == 0 else 1

    @property
    def entries(self) -> list[int]:
        """Where the words of its sub-ifmap go, in order."""
        rows = self.word.Sh * (self.y - 1) + (self.word.Dh + 1) * (self.word.Hk - 1) + 1
        columns = self.word.Sw * (self.x - 1) + (self.word.Dw + 1) * (self.word.Wk - 1) + 1
        return [row * self.pitch + column for row in range(rows) for column in range(columns)]

    def batches(self, machine: Machine, use: PortUse) -> list[tuple[int, int, int]]:
        """Of a pass for one ozi: the first positions that enter together, their cycles, the free ones of these."""
        firsts = range(0, self.y * self.x, machine.pe_rows)
        alone = 2 if len(firsts) * self.zs == 1 and not machine.psum_write_first else 1
        found: list[tuple[int, int, int]] = []
        for first in firsts:
            count = min(machine.pe_rows, self.y * self.x - first)
            cycles = count * use.apart + max(count * (use.cycles - use.apart), alone)
            found.append((first, cycles, cycles - count * use.blocked))
        return found

    def passes(self, machine: Machine) -> list[tuple[list[tuple[int, int, int]], bool]]:
        """Of every pass in turn its batches, and whether it reads the ifmap pads."""
        computing = self.batches(machine, PortUse())
        ending = [(self.batches(machine, use), number == 0) for number, use in enumerate(self.uses)]
        return [(computing, True)] * (self.channels * self.taps - 1) + ending

    def cycles(self, machine: Machine) -> int:
        swept = sum(self.zs * sum(cycles for _, cycles, _ in batches) for batches, _ in self.passes(machine))
        return swept + (len(self.uses) - 1) * self.wait(machine)

    def wait(self, machine: Machine) -> int:
        """Cycles before a fused pass: its products follow six cycles after those of the pass before."""
        batches = -(-self.y * self.x // machine.pe_rows) * self.zs
        return max(0, 6 - (2 if batches == 1 and not machine.psum_write_first else batches))

    def address(self, tap: int, position: int) -> int:
        hki, wki = divmod(tap, self.word.Wk)
        oyi, oxi = divmod(position, self.x)
        row, column = self.word.Sh * oyi + hki * (self.word.Dh + 1), self.word.Sw * oxi + wki * (self.word.Dw + 1)
        return row * self.pitch + column


@cache
def _wait(step: _Step, following: _Step, machine: Machine) -> int:
    """Cycles until the next sub-ifmap is complete, with the loader going along with the step's passes."""
    entries, loaded = following.entries, 0

    def load(free: int, lowest: int) -> None:
        nonlocal loaded
        allowed = len(entries) if machine.ifmap_pad_sets == 2 else bisect_left(entries, lowest)
        loaded += max(0, min(free, allowed - loaded))

    for number, (batches, reads) in enumerate(step.passes(machine)):
        channel, tap = divmod(number, step.taps)
        in_a_pass = sum(free for _, _, free in batches)
        if not reads:
            load(step.wait(machine) + step.zs * in_a_pass, following.pitch * len(entries))
            continue
        first = step.address(tap, 0) if channel == step.channels - 1 else 0
        follows = channel == step.channels - 1 and tap == step.taps - 1
        load((step.zs - follows) * in_a_pass, first)
        for position, _, free in batches if follows else []:
            load(free, step.address(tap, position))
    return len(entries) - loaded


def _cycles(parts: list[Layer], tile_y: int, tile_x: int, machine: Machine, followers: Followers) -> int:
    head = parts[0]
    dense = head.opcode & 3 == 0
    output_groups = -(-head.Co // 16)
    uses = followers.ports or ((PortUse(),) * followers.stages + (PortUse(1, 1, 1),))
    pitches = [part.Sw * (tile_x - 1) + (part.Dw + 1) * (part.Wk - 1) + 1 for part in parts]
    steps: list[_Step] = []
    for oy in range(0, head.Ho, tile_y):
        for ox in range(0, head.Wo, tile_x):
            y, x = min(tile_y, head.Ho - oy), min(tile_x, head.Wo - ox)
            for _ in range(1 if dense else output_groups):
                for part, pitch in zip(parts, pitches, strict=True):
                    for channel in range(0, part.Ci if dense else 1, 16):
                        depth = min(16, part.Ci - channel) if dense else 1
                        steps.append(_Step(part, y, x, pitch, depth))
                steps.append(steps.pop()._replace(uses=uses))
    total = sum(step.cycles(machine) for step in steps)
    total += sum(_wait(step, following, machine) for step, following in pairwise(steps))
    start = len(parts) * (1 + 5 * output_groups) + followers.words + followers.bs_words
    start += output_groups if dense else 0
    return start + len(steps[0].entries) + total + 3 + uses[-1].late * (machine.pe_rows - 1)


def _words(layer: Layer, tile_y: int, tile_x: int, followers: Followers) -> int:
    """Words that the tiles of a layer read and write: sub-ifmaps, weights, results."""
    dense, with_weights = layer.opcode & 3 == 0, layer.opcode in (CONV, DEPTHWISE)
    groups = -(-layer.Co // 16)
    results = sum(use.ofmap for use in followers.ports or (PortUse(1, 1, 1),))
    total = 0
    for oy in range(0, layer.Ho, tile_y):
        for ox in range(0, layer.Wo, tile_x):
            y, x = min(tile_y, layer.Ho - oy), min(tile_x, layer.Wo - ox)
            rows = layer.Sh * (y - 1) + (layer.Dh + 1) * (layer.Hk - 1) + 1
            columns = layer.Sw * (x - 1) + (layer.Dw + 1) * (layer.Wk - 1) + 1
            total += rows * columns * -(-layer.Ci // 16) + y * x * groups * results
            total += groups * layer.Hk * layer.Wk * (layer.Ci if dense else 1) if with_weights else 0
    return total


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    opcode = draw(st.sampled_from([CONV, DEPTHWISE, MAXPOOL, ADD]))
    Ci = draw(st.integers(1, 40))
    Co = draw(st.integers(1, 70)) if opcode == CONV else Ci
    if opcode == ADD:
        window = {}
    else:
        window = {key: draw(st.integers(1, 4)) for key in ("Hk", "Wk")}
        window |= {key: draw(st.integers(1, 3)) for key in ("Sh", "Sw")}
        window |= {key: draw(st.integers(0, 1)) for key in ("Dh", "Dw")}
    Ho, Wo = draw(st.integers(1, 9)), draw(st.integers(1, 70) if opcode == ADD else st.integers(1, 9))
    return Layer(opcode=opcode, Ci=Ci, Co=Co, Ho=Ho, Wo=Wo, Zs=-(-Co // 16), **window)


MACHINES = [
    DEFAULT,
    Machine(psum_write_first=True),
    Machine(psum_entries=128, ifmap_pad_entries=128),
    Machine(pe_rows=4),
    Machine(pe_rows=3, psum_entries=16),
    Machine(ifmap_pad_sets=1),
    Machine(ifmap_pad_sets=1, pe_rows=3),
    Machine(ifmap_pad_sets=1, psum_write_first=True, psum_entries=128, ifmap_pad_entries=128),
]
FUSED_ADD = (PortUse(), port_use("fmap", (), "fmap"), port_use(None, ("fmap", "skip"), "fmap"))
IN_ONE_MEMORY = (port_use("fmap", ("fmap",), "fmap"),)
FOLLOWERS = [Followers(), Followers(2, 5, 4), Followers(2, 5, 4, FUSED_ADD), Followers(0, 0, 3, IN_ONE_MEMORY)]


@settings(max_examples=80, deadline=None)
@given(layers(), st.sampled_from(MACHINES), st.sampled_from(FOLLOWERS))
def test_no_tile_as_fast_within_one_percent_takes_fewer_words(
    layer: Layer, machine: Machine, followers: Followers
) -> None:
    tiles = {
        (y, x): _cycles([layer], y, x, machine, followers)
        for y in range(1, 65)
        for x in range(1, 65)
        if _legal(layer, y, x, machine)
    }
    tile, found = best_tile([layer], machine, followers)
    tiled = with_tile(layer, *tile)
    fewest = min(tiles.values())
    assert (found.candidates, found.fewest_cycles) == (len(tiles), fewest)
    ranks = {
        each: (0, _words(layer, *each, followers), cycles) if 100 * cycles <= 101 * fewest else (1, 0, cycles)
        for each, cycles in tiles.items()
    }
    chosen = found.y, found.x
    assert ranks[chosen] == min(ranks.values())
    assert (found.cycles, found.words) == (tiles[chosen], _words(layer, *chosen, followers))
    others = [rank for each, rank in ranks.items() if each != chosen]
    if found.runner_up is None:
        assert not others
    else:
        assert ranks[found.runner_up[:2]] == min(others)
        assert found.runner_up[2] == tiles[found.runner_up[:2]]
    assert (tiled.y, tiled.x) == (found.y, found.x)
    assert tiled.yi == layer.Sh * (found.y - 1) + (layer.Dh + 1) * (layer.Hk - 1) + 1
    assert tiled.xi == layer.Sw * (found.x - 1) + (layer.Dw + 1) * (layer.Wk - 1) + 1
    assert replace(tiled, y=layer.y, x=layer.x, yi=layer.yi, xi=layer.xi) == layer


@settings(max_examples=60, deadline=None)
@given(layers(), st.sampled_from(MACHINES), st.data())
def test_words_that_keep_psums_take_the_cycles_of_all_their_steps(
    layer: Layer, machine: Machine, data: st.DataObject
) -> None:
    extents = st.integers(1, 40) if layer.opcode == CONV else st.just(layer.Ci)
    others = [replace(layer, Ci=data.draw(extents), Hk=data.draw(st.integers(1, 4))) for _ in range(2)]
    parts, followers = [layer, *others], data.draw(st.sampled_from(FOLLOWERS))
    y, x = data.draw(st.integers(1, layer.Ho)), data.draw(st.integers(1, layer.Wo))
    cost = chain_cost(parts, np.array([y]), np.array([x]), machine, followers)
    assert cost.cycles[0] == _cycles(parts, y, x, machine, followers)


@pytest.mark.parametrize(
    ("reads", "writes", "source", "expected"),
    [
        (None, (), "fmap", PortUse(0, 0, 0)),
        (None, ("fmap",), "fmap", PortUse(1, 1, 1)),
        (None, ("fmap", "skip"), "fmap", PortUse(1, 1, 1)),
        ("skip", ("fmap",), "fmap", PortUse(1, 1, 1, late=True)),  # the document's Tensor-Add: the operand is free
        ("skip", (), "fmap", PortUse(1, 0, 0)),
        ("fmap", (), "fmap", PortUse(1, 1, 0)),
        (
            "fmap",
            ("fmap",),
            "fmap",
            PortUse(2, 2, 1, True),
        ),  # the operand, then the result; nothing else gets through
        (
            "fmap",
            ("fmap",),
            "skip",
            PortUse(2, 1, 1, True),
        ),  # a sub-ifmap word may come from the other DTCM meanwhile
        ("skip", ("fmap", "skip"), "fmap", PortUse(2, 1, 1, True)),
    ],
)
def test_a_memory_serves_one_access_a_cycle(
    reads: str | None, writes: tuple[str, ...], source: str, expected: PortUse
) -> None:
    assert port_use(reads, writes, source) == expected


@pytest.mark.parametrize(("layer", "machine", "reason", "parameter"), [
    (square(CONV, 32, 9, 1, 4, 16, 16), DEFAULT, "9 x 9 = 81 entries", "ifmap_pad_entries = 64"),
    (square(CONV, 32, 3, 1, 4, 16, 16, 4), DEFAULT, "9 x 9 = 81 entries", "ifmap_pad_entries = 64"),
    (square(MAXPOOL, 14, 14, 1, 0, 16, 16), DEFAULT, "14 x 14 = 196 entries", "ifmap_pad_entries = 64"),
    (square(CONV, 80, 80, 1, 0, 1, 1), Machine(ifmap_pad_entries=10000), "80 x 80", "64 rows and columns"),
    (square(CONV, 4, 3, 1, 1, 16, 200), Machine(psum_entries=12), "13 output channels", "psum_entries = 12"),
    (square(CONV, 4, 3, 1, 1, 16, 200), Machine(weight_pad_entries=12), "13 output channels", "pad_entries = 12"),
])  # fmt: skip
def test_a_layer_without_a_tile_is_refused_naming_the_parameter(
    layer: Layer, machine: Machine, reason: str, parameter: str
) -> None:
    with pytest.raises(DoesNotFit) as caught:
        best_tile([layer], machine, Followers(), "conv1")
    (problem,) = caught.value.problems
    assert (problem.code, problem.node) == ("E303", "conv1")
    assert reason in problem.reason
    assert parameter in str(problem.limit)


def test_a_channel_wise_layer_holds_one_weight_per_pe_whatever_its_channels() -> None:
    layer = square(DEPTHWISE, 4, 3, 1, 1, 200, 200)
    one = Machine(weight_pad_entries=1)
    assert best_tile([layer], one, Followers()) == best_tile([layer], DEFAULT, Followers())


def test_the_remedy_of_a_layer_without_a_tile_is_a_machine_that_has_one() -> None:
    for layer, values in (
        (square(CONV, 32, 9, 1, 4, 16, 16), {"ifmap_pad_entries": 81}),
        (square(CONV, 4, 3, 1, 1, 16, 200), {"psum_entries": 13}),
    ):
        machine = Machine(psum_entries=12) if "psum_entries" in values else DEFAULT
        with pytest.raises(DoesNotFit) as caught:
            best_tile([layer], machine, Followers())
        assert " = ".join(map(str, *values.items())) in str(caught.value.problems[0].remedy)
        best_tile([layer], replace(machine, **values), Followers())
