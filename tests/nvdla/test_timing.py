"""The cycle model against NVDLA's RTL: fitted anew, each measurement left out of its own fit."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
import pytest

from benchmarks import rtl_clocks
from npuc.targets.nvdla.arithmetic.integer import IDLE
from npuc.targets.nvdla.formats.weights import WeightForm
from npuc.targets.nvdla.machine.parameters import FULL, SMALL, Machine
from npuc.targets.nvdla.operations import timing
from npuc.targets.nvdla.operations.operation import (
    Banks,
    Convolution,
    Elementwise,
    Kernels,
    KernelWindow,
    Mask,
    Operation,
    Pooling,
    Sdp,
    Surface,
    Unit,
)
from npuc.targets.nvdla.operations.pingpong import ends
from npuc.targets.nvdla.operations.scoreboard import Admission

MEASURED: dict[tuple[int, ...], int] = {  # C, H, W, K, kernel, stride: clocks on the nv_small RTL (facts on NVDLA)
    (16, 16, 16, 16, 3, 1): 10678, (32, 16, 16, 32, 3, 1): 40812, (64, 8, 8, 64, 3, 1): 38912,
    (64, 8, 8, 64, 1, 1): 7676, (128, 8, 8, 128, 1, 1): 20368, (16, 32, 32, 16, 3, 1): 41382,
    (16, 32, 32, 32, 3, 2): 23522, (32, 16, 16, 64, 3, 2): 22382, (8, 32, 32, 16, 5, 1): 53884,
    (8, 56, 56, 8, 3, 1): 41914, (3, 32, 32, 16, 3, 1): 25270,
}  # fmt: skip
SDP = Sdp(Unit(IDLE), Unit(IDLE))


def _convolution(C: int, H: int, W: int, K: int, R: int, stride: int) -> Convolution:
    Ho, Wo = -(-H // stride), -(-W // stride)
    kernels = Kernels(0, K * C * R * R, K, R, R, C, C * R * R)
    window = KernelWindow(stride, stride, 1, 1, R // 2, R // 2, R // 2, R // 2)
    return Convolution(
        Surface(0, W, H, C, 0, 0), kernels, window, Banks(1, 1, 1), SDP, Surface(0, Wo, Ho, K, 0, 0)
    )


TREE = replace(SMALL, bytes_per_clock=4.0)
"""Memory of NVDLA's own harness, as at the measurements: 8 bytes every other clock."""


@pytest.mark.parametrize(("layer", "clocks"), MEASURED.items())
def test_a_convolution_is_within_a_twentieth_of_the_rtl(layer: tuple[int, ...], clocks: int) -> None:
    assert timing.cycles(_convolution(*layer), TREE) == pytest.approx(clocks, rel=0.05)


def _fitted(measured: dict[tuple[int, ...], int]) -> float:
    """The clocks of a stripe's drain with the least relative error, beside a constant."""
    best: tuple[float, float] | None = None
    for drain in np.arange(16, 60, 0.5):
        rest: list[float] = []
        for (C, H, W, K, R, stride), clocks in measured.items():
            pixels, groups, blocks = -(-H // stride) * -(-W // stride), -(-K // 8), -(-C // 8)
            stripe = 16 * blocks * R * R, 9 * 16 + drain  # all are whole stripes
            spent = groups * pixels // 16 * max(stripe) + min(stripe)
            data = blocks * 8 * H * W
            rest.append(clocks - spent - (data + min(data, K * C * R * R)) / 4)
        errors = np.abs(np.array(rest) - np.median(rest)) / list(measured.values())
        if best is None or errors.max() < best[0]:
            best = float(errors.max()), float(drain)
    assert best is not None
    return best[1]


def test_the_drain_is_that_of_the_fit() -> None:
    assert pytest.approx(_fitted(MEASURED), abs=2.5) == timing.DRAIN  # images alone: 34.5


@pytest.mark.parametrize("layer", MEASURED)
def test_a_measurement_left_out_of_the_fit_is_within_six_percent(
    layer: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = _fitted({key: value for key, value in MEASURED.items() if key != layer})
    monkeypatch.setattr(timing, "DRAIN", drain)
    assert timing.cycles(_convolution(*layer), TREE) == pytest.approx(MEASURED[layer], rel=0.06)


FREE = replace(SMALL, clocks_per_write=0.0)
"""Software takes no time."""
NOW, AFTER = Admission(0, 0, 0), Admission(0, 1, 1)
WAITED = {  # channels of one pixel, kernels, weight banks: clocks on the nv_small RTL
    (9216, 32, 24): 66291, (14336, 16, 28): 59641,
}  # fmt: skip


@pytest.mark.parametrize(("layer", "clocks"), WAITED.items())
def test_a_kernel_group_that_does_not_fit_beside_the_one_before_is_waited_for(
    layer: tuple[int, int, int], clocks: int
) -> None:
    """Fully connected layers of several kernel groups."""
    channels, count, banks = layer
    lone = _convolution(channels, 1, 1, count, 1, 1)
    held = replace(lone, banks=Banks(channels // 8, 32 - banks, banks))
    assert ends([(held, NOW)], FREE)[0] == pytest.approx(clocks, rel=0.05)


AUTOENCODER = [(160, 2, 128), *[(128, 1, 128)] * 3, (128, 1, 8), (8, 1, 128), *[(128, 1, 128)] * 3, (128, 1, 640)]
"""Channels, side and kernels of tiny_ad_ae's layers, each over its whole input."""


@pytest.mark.parametrize(("memory", "clocks"), [(TREE, 71685), (SMALL, 37618)])
def test_where_weights_dominate_the_stated_memory_decides(memory: Machine, clocks: int) -> None:
    """tiny_ad_ae on the RTL with both memories (facts on NVDLA)."""
    layers: list[tuple[Operation, Admission]] = []
    for number, (channels, side, count) in enumerate(AUTOENCODER):
        size = channels * side * side
        kernels = Kernels(0, count * size, count, side, side, channels, size)
        source, result = Surface(0, side, side, channels, 0, 0), Surface(0, 1, 1, count, 0, 0)
        layer = Convolution(source, kernels, KernelWindow(1, 1, 1, 1, 0, 0, 0, 0), Banks(16, 16, 16), SDP, result)
        layers.append((layer, Admission(max(number - 1, 0), number, number)))
    assert ends(layers, memory)[-1] == pytest.approx(clocks, rel=0.05)


RTL = Path(__file__).resolve().parents[3] / "shared/nvdla"


@pytest.mark.skipif(not RTL.is_dir(), reason="the programs that ran on the RTL are not beside the checkout")
@pytest.mark.parametrize("memory", ["default", "fast"])
def test_small_programs_are_within_a_tenth_of_the_rtl(memory: str) -> None:
    """Registers decide here: a program of 100 writes is shorter than they are without the driver's time."""
    folders = [each.parent for each in sorted(RTL.glob("*/nv_small/*/clocks"))]
    for folder in folders:
        measured = dict(rtl_clocks.measured_clocks(folder)).get(memory)
        if measured is not None:
            assert rtl_clocks.clocks(folder, memory) == pytest.approx(measured, rel=0.1), folder.name


def test_sdp_and_pdp_alone_take_about_a_clock_an_element_on_nv_small() -> None:
    cube = Surface(0, 32, 32, 64, 0, 0)
    assert timing.cycles(Elementwise(cube, SDP, cube), SMALL) == pytest.approx(65536 / 0.99, rel=0.01)
    window = KernelWindow(2, 2, 1, 1, 0, 0, 0, 0)
    pooling = Pooling(cube, "MAX", (2, 2), window, (1, 1), Surface(0, 16, 16, 64, 0, 0))
    assert timing.cycles(pooling, SMALL) == pytest.approx(65536, rel=0.01)
    half = [replace(each, precision="fp16", channels=each.channels // 2) for each in (cube, pooling.destination)]
    assert timing.stream_cycles(replace(pooling, source=half[0], destination=half[1]), FULL) == 65536 / 8


def test_a_fully_connected_layer_takes_at_least_its_weights_time() -> None:
    layer = _convolution(1024, 1, 1, 1000, 1, 1)
    assert timing.cycles(layer, SMALL) >= 1024 * 1000 / 8
    assert timing.cycles(layer, FULL) >= 1024 * 1000 / 20
    assert timing.cycles(layer, TREE) >= 1024 * 1000 / 4


def test_nv_full_multiplies_32_times_as_much_in_a_clock() -> None:
    assert FULL.macs_per_cycle("int8") == 32 * SMALL.macs_per_cycle("int8")


def test_stripes_are_cut_as_the_hardware_cuts_them() -> None:
    """CSC: 32 pixels or more are left: 16; up to 16: all of them; else 8."""
    for pixels in range(1, 200):
        left, expected = pixels, list[int]()
        while left:
            expected.append(16 if left >= 32 else left if left <= 16 else 8)
            left -= expected[-1]
        found = [length for length, count in timing.stripe_lengths(pixels, 8) for _ in range(count)]
        assert sorted(found) == sorted(expected)


def _halves(layer: Convolution, entries: int = 32, data: int = 16) -> Convolution:
    return replace(layer, banks=Banks(entries, data, 32 - data))


def test_the_input_of_a_pass_is_fetched_while_the_one_before_computes() -> None:
    layer = _halves(_convolution(16, 16, 16, 16, 3, 1))
    alone = timing.cycles(layer, SMALL)
    apart = ends([(layer, NOW), (layer, AFTER)], FREE)
    together = ends([(layer, NOW), (layer, NOW)], FREE)
    assert apart[1] == pytest.approx(2 * alone, rel=0.001)
    exposed = timing.fetch_cycles(layer.source, layer.kernels, SMALL)
    hidden = exposed + timing.START + SMALL.latency + _filling(layer)
    assert together[1] == pytest.approx(2 * alone - hidden + timing.HANDOVER, rel=0.001)


def test_an_input_for_which_the_ring_has_no_room_is_fetched_afterwards() -> None:
    layer = _halves(_convolution(16, 16, 16, 16, 3, 1), entries=512)  # 16 lines fill 16 banks of 512
    found = ends([(layer, NOW), (layer, NOW)], FREE)
    assert found[1] == pytest.approx(2 * timing.cycles(layer, SMALL) - _filling(layer), rel=0.001)


def _filling(layer: Convolution) -> float:
    """What the second of two convolutions hides."""
    return timing.array_cycles(layer, SMALL)[1]


def _of(
    layer: Convolution, form: WeightForm, channels: int, height: int, width: int, mask: Mask | None = None
) -> Convolution:
    """The layer with its weights in another form."""
    kernels = replace(layer.kernels, form=form, channels=channels, height=height, width=width, mask=mask)
    return replace(layer, kernels=kernels)


def test_winograd_multiplies_16_times_where_direct_weights_do_36_times() -> None:
    direct = _convolution(256, 56, 56, 256, 3, 1)
    winograd = _of(direct, WeightForm("winograd"), 256, 4, 4)
    assert (
        timing.products_per_pixel(direct.kernels, FULL) / timing.products_per_pixel(winograd.kernels, FULL) == 2.25
    )


@pytest.mark.parametrize(("lines", "clocks"), [(1, 7), (2, 4)])
def test_an_image_takes_a_clock_for_a_line_of_the_kernel_or_for_those_that_are_joined(
    lines: int, clocks: int
) -> None:
    """7x7 of four components: a line of 28 elements in blocks of 64; as features 49 taps."""
    direct = _convolution(3, 224, 224, 64, 7, 2)
    image = _of(direct, WeightForm("image", lines), 28, 7, 1)
    assert timing.products_per_pixel(direct.kernels, FULL) == 49
    assert timing.products_per_pixel(image.kernels, FULL) == clocks


def test_compressed_weights_that_are_waited_for_take_the_time_of_their_three_surfaces() -> None:
    layer = _convolution(1024, 1, 1, 1024, 1, 1)
    mask = Mask(0, 1024 * 1024 // 8, 0, 128)
    sparse = _of(layer, WeightForm(compressed=True), 1024, 1, 1, mask)
    sparse = replace(sparse, kernels=replace(sparse.kernels, bytes=200 * 1024))
    slow = replace(FULL, dram_mb_per_second=10000)
    moved = 200 * 1024 + 128 * 1024 + 128 + 1024
    filling = timing.array_cycles(sparse, slow)[1]
    assert timing.cycles(sparse, slow) == ceil(timing.START + slow.latency + moved / 10 + filling)


def test_an_image_is_fetched_as_its_lines_are_long() -> None:
    features, image = Surface(0, 30, 10, 3, 0, 0), Surface(0, 30, 10, 4, 0, 0, pixels="T_A8B8G8R8")
    assert timing.cube_bytes(features, SMALL) == 30 * 10 * 8
    assert timing.cube_bytes(image, SMALL) == 30 * 10 * 4
    assert timing.cube_bytes(image, FULL) == 10 * 128


def test_where_banks_are_divided_otherwise_the_input_waits_for_the_array() -> None:
    layer = _halves(_convolution(16, 16, 16, 16, 3, 1))
    found = ends([(layer, NOW), (_halves(layer, data=8), NOW)], FREE)
    assert found[1] == pytest.approx(2 * timing.cycles(layer, SMALL) - _filling(layer), rel=0.001)


def test_the_array_waits_for_sdp_where_an_operand_is_not_there_yet() -> None:
    layer = _halves(_convolution(16, 16, 16, 16, 3, 1))
    found = ends([(layer, NOW), (layer, Admission(0, 0, 1))], FREE)
    assert found[1] < ends([(layer, NOW), (layer, AFTER)], FREE)[1]


def test_memory_that_hands_over_a_byte_in_eight_clocks_bounds_a_program() -> None:
    slow = replace(SMALL, dram_mb_per_second=125)
    layer = _halves(_convolution(16, 16, 16, 16, 3, 1))
    read = 16 * 16 * 16 + 16 * 16 * 9
    assert ends([(layer, NOW)] * 4, slow)[-1] >= 4 * 8 * read


def _lone(operations: list[Operation]) -> int:
    return sum(timing.cycles(each, SMALL) for each in operations)


def test_nvidias_schedule_of_resnet8_takes_what_it_took() -> None:
    """14 passes one after the other, sums and pooling apart: 281,750 clocks on the RTL."""
    shapes = [(3, 32, 32, 16, 3, 1), *[(16, 32, 32, 16, 3, 1)] * 2, (16, 32, 32, 32, 3, 2), (32, 16, 16, 32, 3, 1)]
    shapes += [(16, 32, 32, 32, 1, 2), (32, 16, 16, 64, 3, 2), (64, 8, 8, 64, 3, 1), (32, 16, 16, 64, 1, 2)]
    passes: list[Operation] = [_convolution(*each) for each in (*shapes, (64, 1, 1, 10, 1, 1))]
    cubes = [Surface(0, 32, 32, 16, 0, 0), Surface(0, 16, 16, 32, 0, 0), Surface(0, 8, 8, 64, 0, 0)]
    passes += [Elementwise(each, SDP, each) for each in cubes]
    window = KernelWindow(8, 8, 1, 1, 0, 0, 0, 0)
    passes.append(Pooling(cubes[-1], "AVERAGE", (8, 8), window, (1, 1), Surface(0, 1, 1, 64, 0, 0)))
    assert len(passes) == 14
    assert _lone(passes) == pytest.approx(281750, rel=0.05)
    assert _lone(passes[10:13]) == pytest.approx(32000, rel=0.1)  # what adding within the convolutions saved


def test_nvidias_schedule_of_three_convolutions_takes_what_it_took() -> None:
    """3 x (16x32x32 -> 16, 3x3) one after the other: 119,800 clocks on the RTL."""
    assert _lone([_convolution(16, 32, 32, 16, 3, 1)] * 3) == pytest.approx(119800, rel=0.06)
