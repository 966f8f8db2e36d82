"""Loads beside a run (Machine.overlap): what may move, what that hides, and what is refused, by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npuc.errors import ArtefactError, NpucError
from npuc.ir import Node
from npuc.onnx_files.export import to_onnx
from npuc.program import Program
from npuc.target import Options, Request, target
from npuc.targets.easynpu.export.c_export import export_files
from npuc.targets.easynpu.export.recounting import recount
from npuc.targets.easynpu.layers.jobs import Job, Stage, no_words, pointwise_word
from npuc.targets.easynpu.layers.tiling import Tiling
from npuc.targets.easynpu.layers.views import MapView
from npuc.targets.easynpu.machine.memory import MapPlace, low_end
from npuc.targets.easynpu.machine.parameters import REGISTERS, Machine, identity, requirements
from npuc.targets.easynpu.plan.placement import PlacedJob, Placement
from npuc.targets.easynpu.program.artefact import Contents, ImageLoad, Segment, TensorMove
from npuc.targets.easynpu.program.emission import EmittedJob
from npuc.targets.easynpu.program.overlap import with_loads_ahead
from npuc.targets.easynpu.program.residence import EmittedRun, exposed_words, places_in_turns
from npuc.targets.easynpu.simulate.walk import segments_of
from npuc.verification.metrics import Tolerance
from tests.compiled import verified
from tests.easynpu.networks import Blocks, Network, Residual
from tests.easynpu.test_random_networks import REFUSALS
from tests.easynpu_rewrites.nets import Net

WIDTH = 4
MACHINE = Machine(fmap_words=100, weight_words=100, host_bytes_per_cycle=16, overlap=True)
"""A word a cycle."""


def low(row: int) -> MapPlace:
    return low_end("fmap", row * WIDTH, 16, WIDTH)


def rows(first: int, end: int, place: MapPlace, tensor: str = "t") -> TensorMove:
    """Rows of a tensor (1, 16, 10, 4) whose row `first` lies at the place."""
    return TensorMove(tensor, (1, 16, 10, WIDTH), place, 16, end - first, WIDTH, (0, first, 0))


def copying(cycles: int, stream: tuple[int, int] = (0, 0)) -> EmittedRun:
    """A run that reads rows 0 and 1 of the Fmap DTCM and writes rows 3 and 4; its weights lie at word 0."""
    view = MapView("b", 16, 2, WIDTH)
    node = Node("MaxPool", ("b",), ("c",))
    stage = Stage(pointwise_word("maxpool", 16, 2, WIDTH), no_words(), node, "c", view)
    placed = PlacedJob(Job((stage,), MapView("c", 16, 2, WIDTH)), (low(0),), low(3), None, None, explicit=True)
    job = EmittedJob(placed, (), no_words(), Tiling(1, 1, cycles, 1, cycles, None, 1, 1, 1))
    return EmittedRun(Placement((placed,), (), (), {}), (job,), stream)


def weights(address: int, words: int, start: int = 0) -> ImageLoad:
    return ImageLoad("weight", address, "weight.bin", start, words)


def test_rows_move_ahead_unless_the_run_before_reads_writes_or_stores_them() -> None:
    """Words 16 to 19 are the run's second result row, so row 0 waits; rows 8 and 9 are what the run stores."""
    steps = Segment((), (), 1, (rows(8, 10, low(3)),)), Segment((), (rows(0, 10, low(4)),), 1, ())
    before, after = with_loads_ahead(steps, [copying(50), copying(50)], MACHINE)
    assert isinstance(before, Segment) and isinstance(after, Segment)
    assert before.loads_ahead == (rows(1, 8, low(5)),)
    assert after.loads == (rows(0, 1, low(4)), rows(8, 10, low(12)))


def test_weights_beyond_the_stream_that_runs_move_ahead_as_far_as_the_bus_has_time() -> None:
    """30 of 70 words lie where the second run streams; of 40 others 15 pass in its 15 cycles, 25 before."""
    runs = [copying(60), copying(15, (0, 30)), copying(60)]
    steps = [Segment((ImageLoad("itcm", 0, "itcm.bin", 0, 1),), (), 1, ()) for _ in runs]
    steps[2] = replace(steps[2], images=(*steps[2].images, weights(0, 70, start=200)))
    first, second, third = with_loads_ahead(steps, runs, MACHINE)
    assert isinstance(first, Segment) and isinstance(second, Segment) and isinstance(third, Segment)
    assert third.images == (*steps[2].images[:1], weights(0, 30, start=200))
    assert (first.words_ahead, second.words_ahead) == (25, 15)
    moved = sorted((each.address, each.start, each.words) for each in (*first.images_ahead, *second.images_ahead))
    assert moved == [(30, 230, 25), (55, 255, 15)]
    assert first.overlapped_cycles(60, MACHINE) == 25
    assert second.overlapped_cycles(15, replace(MACHINE, host_bytes_per_cycle=1)) == 15  # of 15 * 16


def test_streams_that_are_exchanged_lie_at_both_ends() -> None:
    """60 and 40 words fill the room of 100; of 60 and 55 words 15 wait; what is loaded first waits for nothing."""
    streams = [(0, 60), (60, 40), (100, 60), (160, 40)]
    assert places_in_turns(streams, MACHINE, [500] * 4) == [0, 60, 0, 60]
    assert exposed_words([((0, 60), 0), ((60, 55), 45)], [60, 55], [500, 500]) == 60 + 15
    assert exposed_words([((0, 60), 0), ((60, 40), 60)], [60, 40], [25, 500]) == 60 + 15
    assert exposed_words([((0, 10), 0), ((10, 10), 10), ((20, 40), 60)], [10, 10, 40], [30, 5, 9]) == 10 + (
        40 - 5 - 20
    )


def overlapping(folder: Path, machine: str = "") -> Path:
    (folder / "overlap.toml").write_text(f"overlap = true\n{machine}")
    return folder / "overlap.toml"


TIGHT = "fmap_words = 300\nskip_words = 200\nweight_words = 480\nhost_bytes_per_cycle = 2\n"


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A network in tiles, with weights that are exchanged; its JSON read back."""
    folder = tmp_path_factory.mktemp("tiled")
    layers = ("a = Conv <P> (x, v)", "b = Relu (a)", "c = Conv <P> (b, w)", "d = Relu (c)", "y = Conv <P> (d, u)")
    shapes = {"v": (16, 16, 3, 3), "w": (32, 16, 3, 3), "u": (16, 32, 3, 3)}
    text = " ".join(layers).replace("P", "pads = [1, 1, 1, 1]")
    onnx.save(Net((1, 16, 20, 20), (1, 16, 20, 20), text, shapes).model(), folder / "m.onnx")
    options = Options(machine=str(overlapping(folder, TIGHT)))
    program, report = verified(Request(folder / "m.onnx", target("easynpu"), options), folder)
    assert report["bit_exact"]
    return program


def test_a_run_takes_as_long_as_array_or_bus_and_the_report_adds_this_up(tiled: Program) -> None:
    total = hidden = 0
    contents, host = Contents.of(tiled.manifest), tiled.manifest["report"]["host_traffic"]
    for segment, chains in segments_of(tiled):
        if segment == contents.init:
            continue
        run, beside = sum(chain.cycles for chain in chains), segment.words_ahead * 16 // 2
        moved = sum(each.words for each in (*segment.images, *segment.loads, *segment.stores))
        total += moved * 16 // 2 + max(run, beside)
        hidden += min(run, beside)
    assert all(any(getattr(each, name) for each in contents.segments) for name in ("images_ahead", "loads_ahead"))
    assert host["cycles_with_transfers"] == total == target("easynpu").timeline(tiled).cycles
    assert host["overlapped_cycles"] == hidden > 0
    assert recount(tiled, tiled)["host_traffic"] == host
    lines = [str(line[0]) for heading in target("easynpu").outline(tiled) for line in heading.lines]
    beside = sum(len(each.images_ahead) + len(each.loads_ahead) for each in contents.segments)
    assert sum(line.startswith("ahead") for line in lines) == beside


def test_weights_that_are_loaded_still_earlier_are_held_until_a_run_reads_them(tiled: Program) -> None:
    manifest, ends = json.loads(json.dumps(tiled.manifest)), list[int]()
    before, after = manifest["steps"][-7:-5]
    for _ in range(2):
        buffers = target("easynpu").timeline(Program(manifest, tiled.files)).buffers
        ends.append(max(each.end for each in buffers if (each.memory, each.address) == ("weight", 0)))
        before["images_ahead"] = after.pop("images_ahead", [])
    assert ends[0] == ends[1]


FORGED: Mapping[str, Callable[[Any], object]] = {
    "weights that are read": lambda m: _first(m, "images_ahead").update(address=0, start=0, words=480),
    "the map that is read": lambda m: _first(m, "loads_ahead", "loads").update(
        place=_first(m, "loads", "loads_ahead")["place"]
    ),
    "the map that is stored": lambda m: _first(m, "loads_ahead", "stores").update(
        place=_first(m, "stores", "loads_ahead")["place"]
    ),
    "the tensor that is stored": lambda m: _first(m, "loads_ahead", "stores").update(
        {key: each for key, each in _first(m, "stores", "loads_ahead").items() if key != "place"},
        height=1,
        width=1,
    ),
    "instructions": lambda m: _first(m, "images_ahead").update(memory="itcm", file="itcm.bin", start=0),
    "a machine without the option": lambda m: m["machine"].pop("overlap"),
    "no segment behind": lambda m: m["steps"].__delitem__(slice(_at(m, "loads_ahead") + 1, None)),
}


def _at(manifest: Any, *keys: str) -> int:
    return next(at for at, each in enumerate(manifest["steps"]) if all(each.get(key) for key in keys))


def _first(manifest: Any, *keys: str) -> dict[str, Any]:
    """The first of such transfers in the first step that has all of these."""
    return manifest["steps"][_at(manifest, *keys)][keys[0]][0]


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_load_beside_a_run_is_refused_by_whoever_reads_it(what: str, tiled: Program) -> None:
    easynpu, manifest = target("easynpu"), json.loads(json.dumps(tiled.manifest))
    feeds = {"x": np.zeros((1, 1, 16, 20, 20), np.float32)}
    easynpu.runner(Program(manifest, tiled.files))(feeds)
    FORGED[what](manifest)
    forged = Program(manifest, tiled.files)
    for use in (lambda p: easynpu.runner(p)(feeds), easynpu.timeline, lambda p: export_files(p, "c")):
        with pytest.raises(ArtefactError, match="E502"):
            use(forged)


@pytest.mark.parametrize("seed", range(18))
def test_random_networks_are_bit_exact_and_never_slower_than_without_overlap(seed: int, tmp_path: Path) -> None:
    kind = (Network, Blocks, Residual)[seed % 3]
    words = f"fmap_words = {(120, 300, 700)[seed % 3]}\nskip_words = {(60, 300)[seed % 2]}\nweight_words = 600\n"
    text = f"{words}host_bytes_per_cycle = {(1, 3, 8)[seed // 6]}\n"
    (tmp_path / "m.onnx").write_bytes(to_onnx(kind(seed).graph()).SerializeToString())
    (tmp_path / "plain.toml").write_text(text)
    found: list[int] = []
    for machine in (tmp_path / "plain.toml", overlapping(tmp_path, text)):
        request = Request(tmp_path / "m.onnx", target("easynpu"), Options(machine=str(machine), level="0"))
        try:
            program, report = verified(request, tmp_path, (2, 1), Tolerance(sqnr_db=-100, cosine=-1))
        except NpucError as error:
            found.append(0 if {each.code for each in error.problems} <= {*REFUSALS} else -1)
        else:
            assert report["bit_exact"]
            found.append(program.manifest["report"]["host_traffic"]["cycles_with_transfers"])
    plain, overlapped = found
    assert 0 <= overlapped <= plain and (plain == 0) == (overlapped == 0)


def test_a_core_says_whether_it_overlaps_and_a_program_asks_for_it_where_it_loads_beside_a_run() -> None:
    at = REGISTERS.index("words")
    plain, overlapping = (identity(replace(Machine(), overlap=each))[at] for each in (False, True))
    assert (plain, overlapping) == (0xFF, 0x1FF)
    found = [requirements(MACHINE, [], overlaps=each) for each in (False, True)]
    assert [each.value for row in found for each in row if each.register == at] == [0, 0x100]
