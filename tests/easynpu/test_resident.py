"""Rows that remain in the DTCMs between segments, and stored rows that no later step reads, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from npuc.host.step import HostStep
from npuc.ir import Node
from npuc.targets.easynpu.layers.jobs import Job, Stage, no_words, pointwise_word
from npuc.targets.easynpu.layers.views import MapView
from npuc.targets.easynpu.machine.memory import MapPlace, high_end, low_end
from npuc.targets.easynpu.plan.placement import PlacedJob, Placement
from npuc.targets.easynpu.program.artefact import Segment, Step, TensorMove
from npuc.targets.easynpu.program.lowering import Resident, without_dead_stores

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
