"""Rows and weights that remain in the DTCMs, and stored rows that no later step reads, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc.host.step import HostStep
from npuc.ir import Node
from npuc.program import as_loaded
from npuc.target import Options, Request, target
from npuc.targets.easynpu.layers.jobs import Job, Stage, no_words, pointwise_word
from npuc.targets.easynpu.layers.tiling import Tiling
from npuc.targets.easynpu.layers.views import MapView
from npuc.targets.easynpu.machine.memory import MapPlace, high_end, low_end
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.placement import PlacedJob, Placement
from npuc.targets.easynpu.program.artefact import Contents, ImageLoad, Segment, Step, TensorMove
from npuc.targets.easynpu.program.emission import EmittedJob
from npuc.targets.easynpu.program.lowering import Resident, without_dead_stores
from npuc.targets.easynpu.program.residence import EmittedRun, places_of_streams, resident
from npuc.targets.easynpu.simulate.running import Runner
from npuc.targets.easynpu.simulate.simulator import Simulator
from tests.compiled import compilation
from tests.easynpu_rewrites.nets import Net

WIDTH = 4


def rows(first: int, end: int, place: MapPlace, tensor: str = "t") -> TensorMove:
    """Rows of a tensor (1, 16, 10, 4) whose row `first` lies at the place."""
    return TensorMove(tensor, (1, 16, 10, WIDTH), place, 16, end - first, WIDTH, (0, first, 0))


def low(row: int = 0) -> MapPlace:
    return low_end("fmap", row * WIDTH, 16, WIDTH)


def segment(loads: tuple[TensorMove, ...] = (), stores: tuple[TensorMove, ...] = ()) -> Segment:
    return Segment((), loads, 0, stores)


def writing(place: MapPlace, height: int) -> Placement:
    """A copy of a map of this height, whose result lies at the place."""
    view = MapView("c", 16, height, WIDTH)
    stage = Stage(
        pointwise_word("maxpool", 16, height, WIDTH), no_words(), Node("MaxPool", ("b",), ("c",)), None, view
    )
    job = PlacedJob(Job((stage,), view), (low(),), place, None, None, explicit=False)
    return Placement((job,), (), (), {})


def test_only_the_rows_below_those_that_remain_are_loaded() -> None:
    maps = Resident()
    maps.run(Placement((), (), (), {}), segment(stores=(rows(0, 6, low()),)))
    assert maps.load([rows(0, 10, low())]) == (rows(6, 10, low(6)),)


def test_rows_that_lie_elsewhere_are_loaded() -> None:
    """The same rows, but the map that is wanted begins two rows earlier: every row has another address."""
    maps = Resident()
    maps.run(Placement((), (), (), {}), segment(stores=(rows(4, 8, low()),)))
    assert maps.load([rows(2, 8, low())]) == (rows(2, 8, low()),)


def test_a_result_of_one_row_costs_one_row_of_the_map_that_it_overwrites() -> None:
    maps = Resident()
    maps.load([rows(0, 10, low())])
    maps.run(writing(low(), 1), segment())
    assert maps.load([rows(0, 10, low())]) == (rows(0, 1, low()),)


def test_rows_in_the_middle_are_lost_to_the_high_end() -> None:
    """Words 0..39 hold the map; two rows from the high end of 28 words take words 27..20, the rows 5 and 6."""
    maps = Resident()
    maps.load([rows(0, 10, low())])
    maps.run(writing(high_end("fmap", 28, 16, WIDTH), 2), segment())
    assert maps.load([rows(0, 10, low())]) == (rows(5, 7, low(5)),)


def stored(steps: tuple[Step, ...], outputs: tuple[str, ...] = ()) -> list[tuple[TensorMove, ...]]:
    return [step.stores for step in without_dead_stores(steps, outputs) if isinstance(step, Segment)]


def test_only_rows_that_are_loaded_again_are_stored() -> None:
    steps = segment(stores=(rows(0, 8, low()),)), segment(loads=(rows(6, 10, low()),))
    assert stored(steps) == [(rows(6, 8, low(6)),), ()]


def test_a_map_that_nothing_loads_is_not_stored() -> None:
    assert stored((segment(stores=(rows(0, 8, low()),)), segment(loads=(rows(0, 8, low(), "u"),)))) == [(), ()]


def test_rows_beside_the_loaded_columns_are_not_stored() -> None:
    left = replace(rows(0, 8, low()), width=2)
    right = replace(rows(0, 8, low()), width=2, start=(0, 0, 2))
    assert stored((segment(stores=(left,)), segment(loads=(right,)))) == [(), ()]


def test_outputs_and_what_the_host_reads_are_stored_whole() -> None:
    steps = (segment(stores=(rows(0, 8, low()),)),)
    assert stored(steps, ("t",)) == [(rows(0, 8, low()),)]
    reading = HostStep("softmax", "Softmax", ("t",), ("y",), {}, conversion=False, reason="")
    assert stored((*steps, reading)) == [(rows(0, 8, low()),)]


WEIGHTS = Machine(weight_words=100)
DISTINCT = np.arange(150)
"""Contents of a weight image in which no word equals another."""


def test_streams_that_fit_together_lie_one_behind_the_other_and_are_loaded_once() -> None:
    streams = [(0, 60), (60, 40), (0, 60)]
    assert places_of_streams(streams, WEIGHTS) == [0, 60, 0]
    init, loads = resident([(each, at) for each, at in zip(streams, (0, 60, 0), strict=True)], WEIGHTS, DISTINCT)
    assert init == (ImageLoad("weight", 0, "weight.bin", 0, 100),)
    assert loads == [(), (), ()]


def test_with_a_word_more_than_fits_the_longest_stream_stays() -> None:
    """60 + 41 > 100: they share. Of 50, 41 and 10 the longest stays behind the 41 words that the others share."""
    assert places_of_streams([(0, 60), (60, 41)], WEIGHTS) == [0, 0]
    assert places_of_streams([(0, 50), (50, 41), (91, 10)], WEIGHTS) == [41, 0, 0]


def test_a_stream_loaded_for_every_tile_stays_before_a_longer_one_until_the_next_layer() -> None:
    streams = [(0, 50), (50, 30), (0, 50), (50, 30), (0, 50), (80, 45)]
    assert places_of_streams(streams, WEIGHTS) == [45, 0, 45, 0, 45, 0]
    streams = [(0, 80), (80, 20), (0, 80), (100, 20), (0, 80), (120, 80), (200, 20), (120, 80)]
    assert places_of_streams(streams, WEIGHTS) == [20, 0, 20, 0, 20, 20, 0, 20]


def test_what_later_streams_do_not_overwrite_stays() -> None:
    """Of the first stream the second leaves words 30 to 59, which the next inference still finds."""
    init, loads = resident([((0, 60), 0), ((60, 30), 0)], WEIGHTS, DISTINCT)
    assert init == (ImageLoad("weight", 30, "weight.bin", 30, 30),)
    assert loads == [
        (ImageLoad("weight", 0, "weight.bin", 0, 30),),
        (ImageLoad("weight", 0, "weight.bin", 60, 30),),
    ]


def test_the_first_words_of_the_image_stay_behind_the_room_of_others() -> None:
    init, loads = resident([((0, 30), 70), ((30, 60), 0), ((90, 60), 0)], WEIGHTS, DISTINCT)
    assert init == (ImageLoad("weight", 70, "weight.bin", 0, 30),)
    assert [sum(each.words for each in load) for load in loads] == [0, 60, 60]


@pytest.mark.parametrize(
    ("alike", "loaded"), [(0, [(0, 90, 10)]), (5, [(0, 90, 10)]), (6, [(0, 90, 3), (9, 99, 1)])]
)
def test_words_that_another_stream_left_at_their_place_are_not_loaded(
    alike: int, loaded: list[tuple[int, int, int]]
) -> None:
    """Five words are too few for a transfer to end and another to begin: 10 words of which some are as before."""
    contents = np.arange(100)
    contents[93 : 93 + alike] = contents[3 : 3 + alike]
    _, (_, loads) = resident([((0, 90), 0), ((90, 10), 0)], WEIGHTS, contents)
    assert [(each.address, each.start, each.words) for each in loads] == loaded


@pytest.mark.parametrize(("channels", "loaded"), [(64, 3 * (5 + 64 * 9)), (96, 6 * (5 + 96 * 9))])
def test_jobs_leave_half_the_weight_dtcm_to_weights_that_stay(channels: int, loaded: int, tmp_path: Path) -> None:
    """Of four times 581 words for 16 outputs one stays in 1,536; beside 869 words no other 869 has room."""
    net = Net((1, channels, 4, 4), (1, channels, 4, 4), "y = Conv <pads = [1, 1, 1, 1]> (x, w)")
    net = replace(net, constants={"w": (channels, channels, 3, 3)})
    onnx.save(net.model(), tmp_path / "m.onnx")
    found = compilation(Request(tmp_path / "m.onnx", target("easynpu"), Options(level="0"))).program
    assert found.manifest["report"]["host_traffic"]["weight_bytes"] == 16 * loaded


def test_a_part_of_a_run_begins_where_no_later_job_streams_earlier_words() -> None:
    """Jobs of 10 words each; the fourth streams those of the second again, and the fifth those of the third."""

    def job(at: int | None, *, loaded: bool = True) -> EmittedJob:
        block = np.empty((10, 0), np.int8)
        stage = Stage(pointwise_word("maxpool", 16, 1, 1), block, Node("MaxPool", ("b",), ("c",)), weights_at=at)
        placed = PlacedJob(Job((stage,), MapView("c", 16, 1, 1)), (), low(), None, None, explicit=True)
        return EmittedJob(placed, (), block if loaded else block[:0], Tiling(1, 1, 1, 1, 1, None, 1, 1, 1))

    jobs = job(None), job(None), job(None), job(10, loaded=False), job(None, loaded=False), job(30)
    run = EmittedRun(Placement((), (), (), {}), jobs, (100, 40))
    parts = [(each.stream, each.before, len(each.jobs)) for each in run.divided(10)]
    assert parts == [((100, 10), 0, 1), ((110, 20), 10, 4), ((130, 10), 30, 1)]


@pytest.mark.parametrize("name", ["default", "large"])
@pytest.mark.parametrize("sizes", [(16, 32), (32, 48)])
def test_every_inference_behind_an_initialisation_gives_what_the_first_does(
    name: str, sizes: tuple[int, int], tmp_path: Path
) -> None:
    """A machine, initialised once, takes four samples; the default one loads some weights again."""
    shapes = {"v": (sizes[0], 16, 3, 3), "w": (sizes[1], sizes[0], 3, 3), "u": (16, sizes[1], 3, 3)}
    layers = ("a = Conv <P> (x, v)", "b = Relu (a)", "c = Conv <P> (b, w)", "d = Relu (c)", "y = Conv <P> (d, u)")
    text = " ".join(layers).replace("P", "pads = [1, 1, 1, 1]")
    onnx.save(Net((1, 16, 12, 12), (1, 16, 12, 12), text, shapes).model(), tmp_path / "m.onnx")
    samples = {"x": np.random.default_rng(2).normal(size=(4, 1, 16, 12, 12)).astype(np.float32)}
    found = as_loaded(compilation(Request(tmp_path / "m.onnx", target("easynpu"), Options(machine=name))).program)
    contents = Contents.of(found.manifest)
    reloaded = [image for each in contents.segments for image in each.images if image.memory == "weight"]
    assert contents.init.images
    assert bool(reloaded) is (name == "default" and sizes == (32, 48))
    simulator = Simulator(contents.machine, found.files)
    state = simulator.state(1)
    simulator.run(contents.init, state, {})
    expected = Runner(found)(samples)
    for at in range(4):
        tensors = {"x": samples["x"][at : at + 1]}
        for step in contents.steps:
            if isinstance(step, Segment):
                simulator.run(step, state, tensors)
            else:
                step.run(tensors)
        for port in found.outputs:
            assert np.array_equal(tensors[port.name][0], expected[port.name][at])
