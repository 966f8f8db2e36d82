"""`npuc trace`: read back with Perfetto's own schema, its sums are those of the report."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from npuc.ir import Array
from npuc.target import Observer
from npuc.targets.easynpu.target import EASYNPU
from tests.cli.process import Digits, WriteModel, compiled, npuc

TARGETS = {"easynpu": "array", "nvdla-small": "CONV", "bm1684": "BDC"}
"""And the engine that multiplies."""
MEMORY = {"easynpu": ("load", "store"), "nvdla-small": ("DRAM",), "bm1684": ("GDMA",)}
"""The lanes whose bytes are the report's traffic."""


@dataclass
class Slice:
    name: str
    start: int
    details: Mapping[str, Any]
    gives: list[int]
    takes: list[int]
    end: int = -1


@dataclass
class Read:
    """What Perfetto's schema finds in a file."""

    lanes: dict[str, list[Slice]] = field(default_factory=dict[str, list[Slice]])
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=dict[str, "list[tuple[int, float]]"])

    def __iter__(self) -> Iterator[Slice]:
        return (each for lane in self.lanes.values() for each in lane)

    def sum(self, key: str, *lanes: str) -> int:
        return sum(each.details.get(key, 0) for lane in lanes for each in self.lanes[lane])


def read(path: Path) -> Read:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

    found, names = Read(), dict[int, str]()
    trace = Trace.FromString(path.read_bytes())
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id
        track, event = packet.track_descriptor, packet.track_event
        if packet.HasField("track_descriptor"):
            names[track.uuid] = track.name
            kind = found.counters if track.HasField("counter") else found.lanes
            if track.parent_uuid:
                assert track.parent_uuid in names
                kind[track.name] = []
            else:
                assert track.child_ordering == track.EXPLICIT
        elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
            values = {each.name: getattr(each, str(each.WhichOneof("value"))) for each in event.debug_annotations}
            ends = [*event.flow_ids], [*event.terminating_flow_ids]
            found.lanes[names[event.track_uuid]].append(Slice(event.name, packet.timestamp, values, *ends))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            found.lanes[names[event.track_uuid]][-1].end = packet.timestamp
        elif event.type == TrackEvent.TYPE_COUNTER:
            found.counters[names[event.track_uuid]].append((packet.timestamp, event.double_counter_value))
    return found


@pytest.fixture(scope="session")
def programs(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traced")
    found = {"easynpu": digits.program}
    for name in ("nvdla-small", "bm1684"):
        found[name] = folder / name
        compiled(digits.model, found[name], "--target", name).done()
    return found


def traced(program: Path, folder: Path, *options: object) -> Read:
    npuc("trace", program, "-o", folder / "t.pftrace", *options).done()
    return read(folder / "t.pftrace")


def report_of(program: Path) -> Any:
    return json.loads((program / "manifest.json").read_text())["report"]


@pytest.mark.parametrize("target", TARGETS)
def test_sums_are_those_of_the_report(target: str, programs: dict[str, Path], tmp_path: Path) -> None:
    found, report = traced(programs[target], tmp_path), report_of(programs[target])
    traffic = found.sum("bytes", *MEMORY[target])
    extra = report["host_traffic"]["instruction_bytes"] if target == "easynpu" else 0
    assert traffic == report["traffic_bytes"] + extra > 0
    if target == "bm1684":
        assert sum(layer["bytes"] for layer in report["layers"]) == traffic
    array = found.lanes[TARGETS[target]]
    assert {each.details["layer"] for each in array} <= {each["name"] for each in report["layers"]}
    if target == "easynpu":
        assert found.sum("cycles", "array") == report["cycles"]
    else:
        assert max(each.end for each in found) == report["cycles"]
    work = found.counters["multipliers at work"]
    done = sum(level / 100 * (end - start) for (start, level), (end, _) in pairwise(work))
    assert done == pytest.approx(sum(each["ideal_cycles"] for each in report["layers"] if each["ideal_cycles"]))


@pytest.mark.parametrize("target", TARGETS)
def test_slices_of_a_lane_keep_apart_and_flows_go_forward(
    target: str, programs: dict[str, Path], tmp_path: Path
) -> None:
    found = traced(programs[target], tmp_path)
    for lane in found.lanes.values():
        assert all(each.start + each.details["cycles"] == each.end for each in lane)
        assert all(one.end <= other.start for one, other in pairwise(lane))
    givers = {flow: each for each in found for flow in each.gives}
    takers = {flow: each for each in found for flow in each.takes}
    assert givers.keys() == takers.keys() and len(takers) >= 5
    assert all(giver.start <= takers[flow].start for flow, giver in givers.items())
    moved = {name: points for name, points in found.counters.items() if "in use" in name}
    assert moved and all(value >= 0 for points in moved.values() for _, value in points)


@pytest.mark.parametrize("target", TARGETS)
def test_both_formats_tell_the_same(target: str, programs: dict[str, Path], tmp_path: Path) -> None:
    found = traced(programs[target], tmp_path)
    npuc("trace", programs[target], "-o", tmp_path / "t.json", "--format", "json").done()
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    lasting = [(each["name"], round(1000 * each["ts"])) for each in events if each["ph"] == "X"]
    assert sorted(lasting) == sorted((each.name, each.start) for each in found)
    assert sum(each["ph"] == "C" for each in events) == sum(map(len, found.counters.values()))
    assert sum(each["ph"] == "f" for each in events) == sum(len(each.takes) for each in found)
    again = (tmp_path / "t.pftrace").read_bytes()
    traced(programs[target], tmp_path)
    assert (tmp_path / "t.pftrace").read_bytes() == again


def test_parts_beside_host_regions_follow_one_another(digits: Digits, tmp_path: Path) -> None:
    compiled(digits.model, tmp_path / "o", "--deny", "MaxPool").done()
    found, listing = traced(tmp_path / "o", tmp_path), npuc("dump", tmp_path / "o", "--json").json
    nodes = {each["index"]: each["nodes"] for each in listing["instructions"]}
    array = found.lanes["array"]
    assert found.sum("cycles", "array") == report_of(tmp_path / "o")["cycles"]
    assert len({each.details["instruction"] for each in array}) == len(array)
    for each in array:
        assert set(nodes[each.details["instruction"]]) & set(each.details["node"].split(", "))


def test_names_of_a_model_are_text(write: WriteModel, tmp_path: Path) -> None:
    model = write(
        "g (float[1,4,4,4] x) => (float[1,2,4,4] y) { y = Conv <kernel_shape = [1, 1]> (x, w) }", w=(2, 4, 1, 1)
    )
    import onnx

    loaded = onnx.load(model)
    loaded.graph.node[0].name = 'a"};\n\x1b[2J\u202e</script>'
    onnx.save(loaded, model)
    compiled(model, tmp_path / "o").done()
    (only,) = traced(tmp_path / "o", tmp_path).lanes["array"]
    assert only.details["node"] == r'a"};\n\x1b[2J\u202e</script>'


def test_what_cannot_be_traced_is_told(programs: dict[str, Path], tmp_path: Path) -> None:
    for command in (("run", "--data", "x.npz"), ("trace",)):
        said = npuc(command[0], programs["easynpu"], *command[1:], "-o", tmp_path / "t", "--stepping").usage()
        assert "--stepping was removed; --chip-model rtl" in said
    assert (
        "--chip-model rtl" in npuc("trace", programs["easynpu"], "-o", tmp_path / "t", "--data", "x.npz").usage()
    )
    for target, kind in (("nvdla-small", "quick"), ("bm1684", "vendor")):
        refused = npuc("trace", programs[target], "-o", tmp_path / "t", "--chip-model", kind).usage()
        assert "counts no cycles of single layers" in refused
    assert "rtl" in npuc("trace", programs["bm1684"], "-o", tmp_path / "t", "--chip-model", "rtl").usage()
    assert "--format" in npuc("trace", programs["easynpu"], "-o", tmp_path / "t", "--format", "vcd").usage()
    assert not (tmp_path / "t").exists()


class Counted:
    """A chip model that takes so many cycles for each layer."""

    def __init__(self, cycles: Sequence[int]) -> None:
        self.layer_cycles = cycles

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        return {}


@pytest.mark.parametrize("more", [0, 1])
def test_a_chip_model_must_take_the_cycles_of_the_layers(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """The model of one sample of digits takes what the report says; Verilator itself is run in easynpu_rtl."""
    cycles = report_of(digits.program)["cycles"]
    layers = [layer["cycles"] for layer in report_of(digits.program)["layers"]]
    model = Counted([*layers[:-1], layers[-1] + more])

    def runner(_target: object, _program: object, _chip_model: str) -> Counted:
        return model

    monkeypatch.setattr(type(EASYNPU), "runner", runner)
    done = npuc("trace", digits.program, "-o", tmp_path / "t", "--chip-model", "rtl", "--data", digits.few)
    if more:
        assert f"took {cycles + 1} cycles" in done.refused("E602")
        assert not (tmp_path / "t").exists()
    else:
        done.done()
        assert read(tmp_path / "t") == traced(digits.program, tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "rtl -o {out}",
        "rtl {program} --data {few} -o {out}",
        "run {program} --data {few} -o {out} --chip-model rtl",
    ],
)
def test_the_core_needs_amaranth(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in [each for each in sys.modules if each.startswith("npuc.targets.easynpu.rtl")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "amaranth", None)
    given = command.format(program=digits.program, few=digits.few, out=tmp_path / "out")
    assert "npuc[rtl]" in npuc(*given.split()).refused("E507")
    assert not (tmp_path / "out").exists()
