"""The second memory (CVSRAM): its addresses and clocks, maps and weights in it, and what has no room for it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npuc.errors import ArtefactError, DoesNotFit
from npuc.ir import Array
from npuc.program import Program
from npuc.target import target
from npuc.targets.nvdla import model, trace
from npuc.targets.nvdla.arithmetic.integer import IDLE
from npuc.targets.nvdla.emission import program as emitted
from npuc.targets.nvdla.machine.parameters import FULL, SECOND, SRAM_BASE, Machine, load
from npuc.targets.nvdla.machine.registers import PLAYERS, Command, Wait, Write
from npuc.targets.nvdla.model import DeviceMemory
from npuc.targets.nvdla.operations import timing
from npuc.targets.nvdla.operations.operation import (
    Banks,
    Convolution,
    Elementwise,
    Kernels,
    KernelWindow,
    Operation,
    Sdp,
    Surface,
    Transfer,
    Unit,
)
from tests.nvdla.networks import compiled, expect_exact, judged, verified
from tests.nvdla.programs import RESULT, SOURCE, WEIGHTS, Fields, writes
from tests.onnx_models import network, node, weights

WITH = replace(FULL, sram_bytes=4096)
NOTHING = Sdp(Unit(IDLE), Unit(IDLE))
MACHINE = "sram_bytes = 65536\nbytes_per_clock = 1.0\n"
"""One whose DRAM is what layers wait for."""
COPYING = "sram_bytes = 262144\nbytes_per_clock = 2.0\nsram_bytes_per_clock = 16.0"
"""One on which copies of weights are worth it."""


def stated(folder: Path, text: str = MACHINE) -> str:
    """A machine file."""
    path = folder / "board.toml"
    path.write_text(text)
    return str(path)


def memories(contents: dict[int, Array]) -> DeviceMemory:
    """Zeros in DRAM, what is put there, and an empty second memory."""
    made = DeviceMemory.zeros(SOURCE, RESULT + 4096 - SOURCE, (SECOND + SRAM_BASE, WITH.sram_bytes))
    for address, data in contents.items():
        made.write(address, data)
    return made


def line(address: int, atoms: int = 4) -> Surface:
    """A map of one line."""
    return Surface(address, atoms, 1, 32, 32 * atoms, 32 * atoms)


def copied(*places: int) -> list[Elementwise]:
    """SDP copies a line from place to place."""
    return [Elementwise(line(one), NOTHING, line(other)) for one, other in itertools.pairwise(places)]


VALUES = (np.arange(128) - 50).astype(np.int8)


# the machine


@pytest.mark.parametrize("name", ["nvdla-large", "nvdla-full"])
def test_a_machine_file_states_the_second_memory(tmp_path: Path, name: str) -> None:
    machine = load(name, stated(tmp_path, "sram_bytes = 1024\nsram_bytes_per_clock = 16\nsram_latency = 8"))
    assert (machine.sram_bytes, machine.sram_bytes_per_cycle, machine.sram_latency) == (1024, 16.0, 8)
    assert Machine.of(machine.as_dict(), "of the artefact") == machine


def test_without_one_a_machine_says_nothing_of_it(tmp_path: Path) -> None:
    assert load("nvdla-full", stated(tmp_path, "sram_bytes = 0")) == replace(FULL, name="board")
    assert not any("sram" in name for name in FULL.as_dict())


def test_nv_small_has_no_interface_to_a_second_memory(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit, match=r"sram_bytes = 4096 on nv_small") as caught:
        load("nvdla-small", stated(tmp_path, "sram_bytes = 4096"))
    (problem,) = caught.value.problems
    assert problem.code == "E305" and problem.limit and "no interface to a second memory" in problem.limit


@pytest.mark.parametrize("size", [100, 1 << 25])
def test_sizes_that_no_second_memory_has_are_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(DoesNotFit, match=f"sram_bytes = {size}"):
        load("nvdla-full", stated(tmp_path, f"sram_bytes = {size}"))


# the functional model


def test_what_goes_through_the_second_memory_comes_back(tmp_path: Path) -> None:
    commands = emitted(WITH, copied(SOURCE, SRAM_BASE + 128, RESULT))
    after = model.run(WITH, commands, memories({SOURCE: VALUES.view(np.uint8)}))
    assert after.read(RESULT, 128) == after.read(SECOND + SRAM_BASE + 128, 128) == VALUES.tobytes()


def _retyped(commands: Sequence[Command], title: str, value: int) -> list[Command]:
    """The same with another value in a register."""
    address = model.ChipModel(WITH, memories({})).registers.map[title].address
    return [
        Write(address, value) if isinstance(each, Write) and each.address == address else each for each in commands
    ]


@pytest.mark.parametrize(
    ("title", "ram", "said"),
    [
        ("SDP.D_DST_DMA_CFG", 1, "at 0x50000080 lie outside memory"),
        ("SDP_RDMA.D_SRC_DMA_CFG", 0, "at 0x80000000 lie outside the second memory"),
    ],
)
def test_an_address_is_one_of_the_memory_that_ram_type_names(title: str, ram: int, said: str) -> None:
    commands = _retyped(emitted(WITH, copied(SOURCE, SRAM_BASE + 128)), title, ram)
    with pytest.raises(ArtefactError, match=said):
        model.run(WITH, commands, memories({}))


def test_an_address_of_dram_is_never_one_of_the_second_memory() -> None:
    far = emitted(WITH, copied(SOURCE, SRAM_BASE, SECOND + SRAM_BASE))
    with pytest.raises(ArtefactError, match="0x1000050000000 lies outside memory"):
        model.run(WITH, far, memories({}))


def test_what_nobody_has_written_is_not_read() -> None:
    with pytest.raises(ArtefactError, match="of the second memory what nobody has written"):
        model.run(WITH, emitted(WITH, copied(SRAM_BASE, RESULT)), memories({}))
    partly = [*copied(SOURCE, SRAM_BASE), Elementwise(line(SRAM_BASE, 5), NOTHING, line(RESULT, 5))]
    with pytest.raises(ArtefactError, match="of the second memory what nobody has written"):
        model.run(WITH, emitted(WITH, partly), memories({}))


def test_the_second_memory_ends_with_its_last_byte() -> None:
    last = SRAM_BASE + WITH.sram_bytes - 128
    model.run(WITH, emitted(WITH, copied(SOURCE, last, RESULT)), memories({}))
    with pytest.raises(ArtefactError, match="lie outside the second memory"):
        model.run(WITH, emitted(WITH, copied(SOURCE, last + 32)), memories({}))


def test_a_copy_of_memory_keeps_what_has_been_written() -> None:
    after = model.run(WITH, emitted(WITH, copied(SOURCE, SRAM_BASE)), memories({SOURCE: VALUES.view(np.uint8)}))
    again = model.run(WITH, emitted(WITH, copied(SRAM_BASE, RESULT)), after)
    assert again.read(RESULT, 128) == VALUES.tobytes()
    with pytest.raises(ArtefactError, match="nobody has written"):
        model.run(WITH, emitted(WITH, copied(SRAM_BASE + 128, RESULT)), after)


def test_bdma_copies_lines_from_dram_to_the_second_memory() -> None:
    copy: Fields = {
        "BDMA.CFG_SRC_ADDR_LOW": {"V32": SOURCE // 32}, "BDMA.CFG_DST_ADDR_LOW": {"V32": SRAM_BASE // 32 + 1},
        "BDMA.CFG_CMD": {"SRC_RAM_TYPE": "MC", "DST_RAM_TYPE": "CVSRAM"},
        "BDMA.CFG_LINE": {"SIZE": 1}, "BDMA.CFG_LINE_REPEAT": {"NUMBER": 2},
        "BDMA.CFG_SRC_LINE": {"STRIDE": 3}, "BDMA.CFG_DST_LINE": {"STRIDE": 2},
        "BDMA.CFG_OP": {"EN": 1}, "BDMA.CFG_LAUNCH0": {"GRP0_LAUNCH": 1},
    }  # fmt: skip
    source = np.repeat(np.arange(16, dtype=np.uint8), 32)
    after = model.run(WITH, [*writes(WITH, copy), Wait("BDMA", 0)], memories({SOURCE: source}))
    assert list(after.read(SECOND + SRAM_BASE + 32, 192)[::32]) == [0, 1, 3, 4, 6, 7]


# operations and their clocks


def convolution(kernels: int, source: int = SOURCE) -> Convolution:
    """A 1x1 convolution of a line whose weights BDMA has copied."""
    return Convolution(
        line(source),
        Kernels(kernels, 1024, 32, 1, 1, 32, 32, copied=True),
        KernelWindow(1, 1, 1, 1, 0, 0, 0, 0),
        Banks(1, 8, 8),
        NOTHING,
        line(RESULT),
    )


def moved(source: int, result: int, size: int = 1024) -> Transfer:
    """BDMA copies weights."""
    return Transfer(line(source, size // 32), line(result, size // 32))


def order(operations: Sequence[Operation]) -> list[str]:
    """What is enabled and waited for, in order."""
    known = model.ChipModel(WITH, memories({})).registers.map
    found: list[str] = []
    for each in emitted(WITH, operations):
        if isinstance(each, Write) and known.register_at(each.address).title in (
            "CDMA.D_OP_ENABLE",
            "BDMA.CFG_LAUNCH0",
        ):
            found.append(known.register_at(each.address).block)
        elif isinstance(each, Wait):
            found.append(f"wait {each}")
    return found


def test_a_convolution_waits_for_the_copy_of_its_weights_and_for_no_other() -> None:
    needed = [moved(WEIGHTS, SRAM_BASE), convolution(SRAM_BASE)]
    assert order(needed) == ["BDMA", "wait BDMA_0", "CDMA", "wait SDP_0"]
    other = [moved(WEIGHTS, SRAM_BASE), convolution(SRAM_BASE + 1024)]
    assert order(other) == ["BDMA", "CDMA", "wait BDMA_0", "wait SDP_0"]
    reused = [convolution(SRAM_BASE), moved(WEIGHTS, SRAM_BASE)]
    assert order(reused) == ["CDMA", "wait SDP_0", "BDMA", "wait BDMA_0"]


def test_weights_that_bdma_may_still_write_are_not_read() -> None:
    operations = [moved(WEIGHTS, SRAM_BASE), convolution(SRAM_BASE)]
    commands = emitted(WITH, operations)
    kernels = np.arange(1024).astype(np.uint8)
    after = model.run(WITH, commands, memories({WEIGHTS: kernels, SOURCE: np.ones(128, np.uint8)}))
    sums = kernels.view(np.int8).reshape(32, 32).sum(axis=1)
    np.testing.assert_array_equal(np.frombuffer(after.read(RESULT, 32), np.int8), np.clip(sums, -128, 127))
    early = [each for each in commands if each != Wait("BDMA", 0)]
    with pytest.raises(ArtefactError, match="what BDMA may still write"):
        model.run(WITH, early, memories({WEIGHTS: kernels}))


def test_each_memory_has_its_own_clocks() -> None:
    machine = replace(WITH, bytes_per_clock=8.0, sram_bytes_per_clock=12.8, latency=50, sram_latency=10)
    inside = Elementwise(line(SRAM_BASE, 64), NOTHING, line(SRAM_BASE + 2048, 64))
    outside = Elementwise(line(SOURCE, 64), NOTHING, line(RESULT, 64))
    assert timing.cycles(outside, machine) == 100 + 50 + 2048 // 8
    assert timing.cycles(inside, machine) == 100 + 10 + 160
    assert timing.moved_by_memory(inside, machine) == (0, 4096)
    assert timing.moved_by_memory(outside, machine) == (4096, 0)


def test_input_and_weights_of_two_memories_come_side_by_side() -> None:
    machine = replace(WITH, bytes_per_clock=8.0, sram_bytes_per_clock=16.0)
    kernels = Kernels(WEIGHTS, 1024, 32, 1, 1, 32, 32)
    assert timing.fetch_cycles(line(SOURCE), kernels, machine) == (128 + 128) / 8
    assert timing.loading_cycles(line(SOURCE), kernels, machine) == (128 + 1024) / 8
    assert timing.fetch_cycles(line(SRAM_BASE), kernels, machine) == 128 / 16
    assert timing.loading_cycles(line(SRAM_BASE), kernels, machine) == 1024 / 8
    there = replace(kernels, address=SRAM_BASE + 1024)
    assert timing.loading_cycles(line(SRAM_BASE), there, machine) == (128 + 1024) / 16


# whole programs


def model_of() -> Any:
    """Convolutions with a residual sum, a pool and a fully connected layer with many weights."""
    shapes = {"v": (32, 16, 3, 3), "w": (32, 32, 3, 3), "u": (32, 32, 3, 3), "z": (64, 2048)}
    constants = {name: weights(*shape) for name, shape in shapes.items()}
    nodes = [
        node("Conv", "x v", "a", pads=[1] * 4),
        node("Relu", "a", "r"),
        node("Conv", "r w", "b", pads=[1] * 4),
        node("Add", "b r", "s"),
        node("MaxPool", "s", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p u", "c", pads=[1] * 4),
        node("Flatten", "c", "f"),
        node("Gemm", "f z", "y", transB=1),
    ]
    return network(nodes, (1, 16, 16, 16), constants)


def operations_of(program: Program) -> list[str]:
    """Their kinds."""
    return [each["operation"] for each in program.manifest["operations"]]


@pytest.mark.parametrize("precision", ["int8", "int16", "fp16"])
def test_maps_and_weights_lie_in_it_where_the_program_ends_earlier(tmp_path: Path, precision: str) -> None:
    samples = 1 if precision == "fp16" else 2  # of which no bits are compared
    options: dict[str, Any] = {"precision": precision, "samples": samples}
    (tmp_path / "without").mkdir()
    text = MACHINE.replace("65536", "131072")
    report = verified(model_of(), tmp_path, "nvdla-full", machine=stated(tmp_path, text), **options)
    slow = stated(tmp_path / "without", "bytes_per_clock = 1.0")
    without = verified(model_of(), tmp_path / "without", "nvdla-full", machine=slow, **options)
    if precision != "fp16":
        expect_exact(report)
    assert [each["sqnr_db"] for each in report["outputs"]] == [each["sqnr_db"] for each in without["outputs"]]
    there, absent = report["compiled"], without["compiled"]
    assert there["cycles"] < absent["cycles"] and there["traffic_bytes"] < absent["traffic_bytes"]
    use = there["memory"]["sram"]
    assert 0 < use["lower_bound_bytes"] <= use["peak_bytes"] <= use["capacity_bytes"] == 131072
    assert there["sram_traffic_bytes"] == sum(each["sram_bytes"] for each in there["layers"]) > 0
    assert "sram" not in absent["memory"] and "sram_traffic_bytes" not in absent


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Program]:
    """`chain` on a machine with a slow DRAM and a fast second memory."""
    folder = tmp_path_factory.mktemp("chained")
    return compiled(chain(), folder, "nvdla-full", machine=stated(folder, COPYING))


def test_weights_that_a_layer_would_wait_for_are_copied_before(
    chained: tuple[Path, Path, Program], tmp_path: Path
) -> None:
    expect_exact(judged(chained, "nvdla-full"))
    assert "transfer" in operations_of(chained[2])
    _, _, large = compiled(chain(), tmp_path, "nvdla-large", machine=stated(tmp_path, COPYING))
    assert "transfer" not in operations_of(large)  # NVDLA's own nv_large has no BDMA
    text = "sram_bytes = 262144\nbytes_per_clock = 64.0\nsram_bytes_per_clock = 1.0"
    _, _, program = compiled(chain(), tmp_path, "nvdla-full", machine=stated(tmp_path, text))
    assert "transfer" not in operations_of(program)  # the copies would make the layer slower


def chain() -> Any:
    """Convolutions that take the array long, then one that has many weights and few products."""
    shapes = [(16, 16, 7, 7)] * 5 + [(32, 16, 13, 13)]
    constants = {f"w{number}": weights(*shape) for number, shape in enumerate(shapes)}
    nodes = [
        node(
            "Conv", f"{'x' if not number else f'h{number - 1}'} w{number}", f"h{number}", pads=[shape[2] // 2] * 4
        )
        for number, shape in enumerate(shapes[:-1])
    ]
    nodes.append(node("Conv", f"h{len(nodes) - 1} w{len(nodes)}", "y"))
    return network(nodes, (1, 16, 32, 32), constants)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """`model_of` on MACHINE."""
    folder = tmp_path_factory.mktemp("program")
    return compiled(model_of(), folder, "nvdla-full", machine=stated(folder))[2]


def test_a_slow_second_memory_stays_empty_and_the_program_is_that_without_one(tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    slow = stated(tmp_path, "sram_bytes = 65536\nsram_bytes_per_clock = 0.25\nsram_latency = 4000")
    _, _, program = compiled(model_of(), tmp_path, "nvdla-full", machine=slow)
    _, _, other = compiled(model_of(), tmp_path / "without", "nvdla-full")
    assert program.report["memory"]["sram"]["peak_bytes"] == 0
    for name in ("registers.bin", "weights.bin"):
        assert program.files[name] == other.files[name]


def test_what_the_host_brings_and_takes_stays_in_dram(program: Program) -> None:
    segments = [step for step in program.manifest["steps"] if step["kind"] == "segment"]
    moves = [each for step in segments for each in (*step["loads"], *step["stores"])]
    assert moves and all(each["place"]["address"] >= 0x80000000 for each in moves)
    results = [each["result"]["place"]["address"] for each in program.manifest["operations"] if each["result"]]
    assert any(SRAM_BASE <= each < SRAM_BASE + 65536 for each in results)


# exports


@pytest.mark.parametrize("player", PLAYERS)
def test_a_test_program_with_copies_runs_to_its_crc_on_every_player(
    chained: tuple[Path, Path, Program], tmp_path: Path, player: str
) -> None:
    folder = tmp_path / "trace"
    folder.mkdir()
    for name, data in target("nvdla-full").export(chained[2], "nvdla-trace", player).items():
        (folder / name).write_bytes(data)
    lines = (folder / "trace_0.cfg").read_text().splitlines()
    assert f"mem_init(sec_mem, {SRAM_BASE:#x}, {1 << 18:#x}, ALL_ZERO);" in lines
    assert any(each.startswith("reg_write(NVDLA_BDMA.CFG_LAUNCH") for each in lines)
    found = trace.read(folder, "nv_full")
    assert all(check.holds(model.run(found.machine, found.commands, found.memory())) for check in found.checks)


def test_a_loadable_has_one_memory(program: Program) -> None:
    with pytest.raises(ArtefactError, match="maps lie in the second memory of board") as caught:
        target("nvdla-full").export(program, "loadable")
    assert caught.value.problems[0].code == "E506" and "sram_bytes" in (caught.value.problems[0].remedy or "")


def test_c_and_readmemh_say_where_it_lies(program: Program) -> None:
    files = target("nvdla-full").export(program, "c")
    assert "#define NPUC_SRAM_BASE 0x50000000u\n#define NPUC_SRAM_BYTES 65536u" in files["npuc_program.h"].decode()
    addresses = [each for each in files["npuc_program.c"].decode().splitlines() if "NPUC_WRITE_ADDRESS" in each]
    assert addresses and not any("0x5000" in each for each in addresses)  # memory_offset does not move it
    assert "NPUC_SRAM_BASE" in files["README.md"].decode()
    described = json.loads(target("nvdla-full").export(program, "readmemh")["map.json"])
    assert described["sram"] == {"base": SRAM_BASE, "bytes": 65536}


def test_the_timeline_has_its_maps(program: Program) -> None:
    maps = [each for each in target("nvdla-full").timeline(program).buffers if each.memory == "sram"]
    assert maps and all(each.address >= 0 and each.address + each.size <= 65536 for each in maps)
