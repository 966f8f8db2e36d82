"""The cycle model against NVDLA's RTL: fitted anew, each measurement left out of its own fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npuc.targets.nvdla import timing
from npuc.targets.nvdla.integer import IDLE
from npuc.targets.nvdla.machine import FULL, SMALL
from npuc.targets.nvdla.operations import (
    Banks,
    Convolution,
    Elementwise,
    Kernels,
    Mask,
    Pooling,
    Sdp,
    Surface,
    Unit,
    Window,
)
from npuc.targets.nvdla.weight_form import WeightForm

MEASURED = {  # C, H, W, K, kernel, stride: clocks on the nv_small RTL (facts on NVDLA)
    (16, 16, 16, 16, 3, 1): 10678, (32, 16, 16, 32, 3, 1): 40812, (64, 8, 8, 64, 3, 1): 38912,
    (64, 8, 8, 64, 1, 1): 7676, (128, 8, 8, 128, 1, 1): 20368, (16, 32, 32, 16, 3, 1): 41382,
    (16, 32, 32, 32, 3, 2): 23522, (32, 16, 16, 64, 3, 2): 22382, (8, 32, 32, 16, 5, 1): 53884,
    (8, 56, 56, 8, 3, 1): 41914, (3, 32, 32, 16, 3, 1): 25270,
}  # fmt: skip
SDP = Sdp(Unit(IDLE), Unit(IDLE))


def _convolution(C: int, H: int, W: int, K: int, R: int, stride: int) -> Convolution:
    Ho, Wo = -(-H // stride), -(-W // stride)
    kernels = Kernels(0, K * C * R * R, K, R, R, C, C * R * R)
    window = Window(stride, stride, 1, 1, R // 2, R // 2, R // 2, R // 2)
    return Convolution(
        Surface(0, W, H, C, 0, 0), kernels, window, Banks(1, 1, 1), SDP, Surface(0, Wo, Ho, K, 0, 0)
    )


@pytest.mark.parametrize(("layer", "clocks"), MEASURED.items())
def test_a_convolution_is_within_a_tenth_of_the_rtl(layer: tuple[int, ...], clocks: int) -> None:
    assert abs(timing.cycles(_convolution(*layer), SMALL) - clocks) < clocks / 10


def _fitted(measured: dict[tuple[int, ...], int]) -> tuple[float, float, float]:
    """Least per pixel, per fetched byte, per group with the least relative error."""
    best: tuple[float, tuple[float, float, float]] | None = None
    for least in np.arange(9, 13, 0.25):
        rows, rest = [], []
        for (C, H, W, K, R, stride), clocks in measured.items():
            pixels, groups, blocks = -(-H // stride) * -(-W // stride), -(-K // 8), -(-C // 8)
            rows.append(np.array([blocks * 8 * H * W, groups]) / clocks)
            rest.append((clocks - groups * pixels * max(blocks * R * R, least)) / clocks)
        found, *_ = np.linalg.lstsq(np.array(rows), np.array(rest), rcond=None)
        error = float(np.abs(np.array(rows) @ found - rest).max())
        if best is None or error < best[0]:
            best = error, (float(least), float(found[0]), float(found[1]))
    assert best is not None
    return best[1]


@pytest.mark.parametrize("layer", MEASURED)
def test_a_measurement_left_out_of_the_fit_is_within_a_tenth(
    layer: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = _fitted({key: value for key, value in MEASURED.items() if key != layer})
    for name, value in zip(("LEAST_PER_PIXEL", "PER_FETCHED_BYTE", "PER_GROUP"), numbers, strict=True):
        monkeypatch.setattr(timing, name, value)
    assert abs(timing.cycles(_convolution(*layer), SMALL) / MEASURED[layer] - 1) < 0.1


def test_sdp_and_pdp_alone_take_about_a_clock_an_element_on_nv_small() -> None:
    cube = Surface(0, 32, 32, 64, 0, 0)
    assert timing.cycles(Elementwise(cube, SDP, cube), SMALL) == pytest.approx(65536 / 0.99 + 300, rel=0.01)
    window = Window(2, 2, 1, 1, 0, 0, 0, 0)
    pooling = Pooling(cube, "MAX", (2, 2), window, (1, 1), Surface(0, 16, 16, 64, 0, 0))
    assert 65536 / 0.98 < timing.cycles(pooling, SMALL) < 65536 / 0.75


def test_a_fully_connected_layer_takes_at_least_its_weights_time() -> None:
    layer = _convolution(1024, 1, 1, 1000, 1, 1)
    assert timing.cycles(layer, SMALL) >= 1024 * 1000 / 8
    assert timing.cycles(layer, FULL) >= 1024 * 1000 / 20


def test_nv_full_multiplies_32_times_as_much_in_a_clock() -> None:
    layer = _convolution(512, 14, 14, 512, 3, 1)
    assert timing.ideal_cycles(layer, SMALL) == 32 * timing.ideal_cycles(layer, FULL)


def test_the_input_of_a_pass_is_fetched_while_the_one_before_computes() -> None:
    layer = _convolution(16, 16, 16, 16, 3, 1)
    alone = timing.cycles(layer, SMALL)
    apart = timing.ends([(layer, 0), (layer, 1)], SMALL)
    together = timing.ends([(layer, 0), (layer, 0)], SMALL)
    assert apart[1] == pytest.approx(2 * alone, rel=0.001)
    assert together[1] == pytest.approx(2 * alone - timing.fetch_cycles(layer.source, SMALL), rel=0.001)


def test_an_input_that_the_buffer_does_not_hold_as_well_is_fetched_afterwards() -> None:
    layer = replace(_convolution(16, 16, 16, 16, 3, 1), banks=Banks(1, 20, 4))
    found = timing.ends([(layer, 0), (layer, 0)], SMALL)
    assert found[1] == pytest.approx(2 * timing.cycles(layer, SMALL), rel=0.001)


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
    computed = timing.compute_cycles(sparse.kernels, sparse.destination, FULL)
    assert computed == (200 * 1024 + 128 * 1024 + 128) / 20


def test_an_image_is_fetched_as_its_lines_are_long() -> None:
    features, image = Surface(0, 30, 10, 3, 0, 0), Surface(0, 30, 10, 4, 0, 0, pixels="T_A8B8G8R8")
    assert timing.cube_bytes(features, SMALL) == 30 * 10 * 8
    assert timing.cube_bytes(image, SMALL) == 30 * 10 * 4
    assert timing.cube_bytes(image, FULL) == 10 * 128
