"""Plans: what is read is there, engines that run together leave each other alone, and cycles near the bound."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import pytest

from npuc.errors import DoesNotFit
from npuc.frontend import load
from npuc.models import MODELS
from npuc.passes import FLOAT_PASSES
from npuc.pipeline import run_passes
from npuc.targets.bm1684.lowering import rules
from npuc.targets.bm1684.lowering.kernel import Call, Kernel
from npuc.targets.bm1684.lowering.tensors import Lowered
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.network.passes import PASSES
from npuc.targets.bm1684.plan import planner

NETWORKS = ("digits", "resnet8", "ds_cnn", "unet_small", "autoencoder", "small_cnn", "mobilenet_v2")
BLOCK = 128
MACHINE = Machine()


@cache
def _plan(name: str, tmp: str) -> tuple[Lowered, Kernel]:
    from pathlib import Path

    path = Path(tmp) / f"{name}.onnx"
    onnx.save(MODELS[name](), path)
    lowered = rules.lower(run_passes(load(path, {}), (*FLOAT_PASSES, *PASSES)), MACHINE)
    return lowered, planner.plan(lowered, MACHINE)


@pytest.fixture
def tmp(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.getbasetemp())


def _places(kernel: Kernel) -> dict[str, int]:
    return {place.buffer: place.start for place in kernel.places}


def _blocks(lowered: Lowered, kernel: Kernel, buffer: str) -> slice:
    start = _places(kernel)[buffer]
    assert start % BLOCK == 0
    assert start + lowered.buffers[buffer] <= MACHINE.local_bytes
    return slice(start // BLOCK, (start + lowered.buffers[buffer]) // BLOCK)


def _touched(calls: tuple[Call, ...]) -> set[str]:
    return {name for call in calls for name in call.buffers}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_call_reads_bytes_that_hold_what_was_written_there_for_it(name: str, tmp: str) -> None:
    lowered, kernel = _plan(name, tmp)
    holds = np.full(MACHINE.local_bytes // BLOCK, "", dtype=object)
    for region in kernel.regions:
        for call in (*region.gdma, *region.bdc):
            for buffer in call.reads:
                written_here = buffer == call.writes or "temporary" in buffer
                assert written_here or (holds[_blocks(lowered, kernel, buffer)] == buffer).all(), (
                    call.name,
                    buffer,
                )
            if call.writes:
                holds[_blocks(lowered, kernel, call.writes)] = call.writes


@pytest.mark.parametrize("name", NETWORKS)
def test_engines_that_run_together_share_no_bytes(name: str, tmp: str) -> None:
    lowered, kernel = _plan(name, tmp)
    shared = 0
    for region in kernel.regions:
        used = np.zeros(MACHINE.local_bytes // BLOCK, bool)
        for buffer in _touched(region.bdc):
            used[_blocks(lowered, kernel, buffer)] = True
        for buffer in _touched(region.gdma):
            shared += int(used[_blocks(lowered, kernel, buffer)].sum())
    assert shared == 0
    assert any(region.gdma and region.bdc for region in kernel.regions)


@pytest.mark.parametrize(
    ("name", "most"),
    # a hand-planned kernel took 55,966 and the vendor's compiler 627,773 cycles for these two
    [("small_cnn", 56_000), ("mobilenet_v2", 350_000)],
)
def test_cycles_are_near_the_bound(name: str, most: int, tmp: str) -> None:
    _, kernel = _plan(name, tmp)
    cost = planner.cost(kernel.regions, MACHINE)
    assert cost.cycles <= most
    assert cost.bound <= cost.cycles <= 1.03 * cost.bound


def test_a_network_that_does_not_fit_names_its_layer(tmp: str) -> None:
    lowered, _ = _plan("unet_small", tmp)
    with pytest.raises(DoesNotFit) as caught:
        planner.plan(lowered, Machine(local_bytes=4096))
    problem = caught.value.problems[0]
    assert problem.code == "E302"
    assert problem.node
    assert problem.limit == "4096 bytes of local memory in each NPU"


def test_plans_are_the_same_every_time(tmp: str) -> None:
    lowered, kernel = _plan("resnet8", tmp)
    assert planner.plan(lowered, MACHINE) == kernel
