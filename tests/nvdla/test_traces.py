"""NVDLA's own test programs: every one runs on the model to its CRC or byte; what is written is read again."""

from __future__ import annotations

import random
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.target import target
from npuc.targets.nvdla import model, trace
from npuc.targets.nvdla.machine import parameters as machines
from npuc.targets.nvdla.machine.registers import Poll, Wait, Write, register_map
from npuc.targets.nvdla.model import DeviceMemory
from tests.given import GIVEN
from tests.nvdla.networks import compiled
from tests.nvdla.sequencers import Deadlock, Environment
from tests.onnx_models import network, node, weights

FOLDER = GIVEN / "nvdla" / "traces"
PROGRAMS = sorted(FOLDER.glob("*/*")) or [FOLDER]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_a_test_program_of_nvdla_gives_its_golden_result(program: Path) -> None:
    if not program.is_dir():
        pytest.skip("no folder `shared` with NVDLA's test programs beside the project")
    found = trace.read(program)
    after = model.run(found.machine, found.commands, found.memory())
    assert all(check.holds(after) for check in found.checks)
    assert bool(found.checks) == _has_golden_results(program)


def _has_golden_results(program: Path) -> bool:
    """A CRC or a file of expected bytes, or the dump that a program of nv_full makes anew."""
    texts = [each.read_text() for each in (*program.glob("*.cfg"), *program.glob("*.txn"))]
    dumped = [line.split()[3] for text in texts for line in text.splitlines() if line.startswith("dump_mem")]
    return any("check_crc" in text or "check_file" in text for text in texts) or any(
        (program / name).exists() for name in dumped
    )


SAMPLE = trace.Trace(
    "sample",
    "nv_small",
    (Write(0x30BC, 0x2000B), Poll(0x300C, 0xFFFFFFFF, 1), Write(0x9038, 1), Wait("SDP", 0)),
    ((0x80000000, bytes(40) + bytes(range(1, 60))), (0x90000000, bytes(16))),
    (trace.CrcCheck(0x90000000, 16, zlib.crc32(bytes(16))), trace.CrcCheck(0xA0000000, 8, zlib.crc32(bytes(8)))),
)


def _stored(folder: Path, program: trace.Trace) -> Path:
    for name, data in trace.write_files(program).items():
        (folder / name).write_bytes(data)
    return folder


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    read = trace.read(_stored(tmp_path, SAMPLE))
    assert (read.commands, read.checks) == (SAMPLE.commands, SAMPLE.checks)
    assert read.memory().read(0x80000000, 99) == bytes(40) + bytes(range(1, 60))


def test_a_program_is_written_in_the_calls_of_the_test_programs(tmp_path: Path) -> None:
    lines = trace.write_files(SAMPLE)["sample.cfg"].decode().splitlines()
    assert lines == [
        "mem_init(pri_mem, 0x80000000, 0x63, ALL_ZERO);",
        "mem_init(pri_mem, 0x90000000, 0x10, ALL_ZERO);",
        "mem_init(pri_mem, 0xa0000000, 0x8, ALL_ZERO);",
        'mem_load(pri_mem, 0x80000000, "sample_0.dat");',
        "reg_write(NVDLA_CDMA.D_BANK_0, 0x2000b);",
        "poll_reg_equal(NVDLA_CDMA.S_CBUF_FLUSH_STATUS_0, 0x1);",
        "reg_write(NVDLA_SDP.D_OP_ENABLE_0, 0x1);",
        "intr_notify(SDP_0, sync_id_0);",
        f"check_crc(sync_id_0, 1, 0x90000000, 0x10, {zlib.crc32(bytes(16)):#x});",
        f"check_crc(sync_id_0, 1, 0xa0000000, 0x8, {zlib.crc32(bytes(8)):#x});",
    ]


@pytest.mark.parametrize(
    "program",
    [
        each
        for each in PROGRAMS
        if each.parent.name == "nv_small" and each.name.startswith(("dc_1x", "sdp_1x", "pdp_5"))
    ]
    or [FOLDER],
    ids=lambda path: path.name,
)
def test_a_program_of_nvdla_written_again_gives_the_same_result(program: Path, tmp_path: Path) -> None:
    if not program.is_dir():
        pytest.skip("no folder `shared` with NVDLA's test programs beside the project")
    read = trace.read(_stored(tmp_path, trace.read(program)))
    after = model.run(read.machine, read.commands, read.memory())
    assert read.checks and all(check.holds(after) for check in read.checks)


def test_a_wrong_result_does_not_pass() -> None:
    memory = DeviceMemory([(0x90000000, SAMPLE.memory().regions[1][1])])
    memory.write(0x90000003, b"\1")
    assert not SAMPLE.checks[0].holds(memory)


@pytest.mark.parametrize(("text", "reason"), [
    ("reg_write(NVDLA_CDMA.D_NOTHING_0, 0x1);", "no register"),
    ("reg_wrote(NVDLA_CDMA.D_BANK_0, 0x1);", "not understood"),
    ("reg_write(NVDLA_CDMA.D_BANK_0, twelve);", "not understood"),
    ("reg_write(NVDLA_CDMA.D_BANK_0);", "not understood"),
    ("poll_field_equal(NVDLA_CDMA.D_BANK_0, BANK, 1);", "not understood"),
    ("mem_init(pri_mem, 0x0, 0x10, ALL_SEVEN);", "not understood"),
    ('mem_load(pri_mem, 0x0, "absent.dat");', "cannot be read"),
    ("mem_load(pri_mem, 0x0, absent.dat, sync_id_0);", "not understood"),
    ("mem_init(pri_mem, 0x0, 0x10, ALL_ZERO, sync_id_0);", "not understood"),
    ("poll_reg_greater(NVDLA_CDMA.D_BANK_0, 0x1);", "not understood"),
])  # fmt: skip
def test_a_program_that_cannot_be_understood_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "bad.cfg").write_text(text)
    with pytest.raises(Exception, match=reason) as caught:
        trace.read(tmp_path)
    assert "error[E50" in str(caught.value)


def test_calls_that_the_given_programs_do_not_use_are_understood(tmp_path: Path) -> None:
    (tmp_path / "golden.dat").write_text("{ {offset:0x2, size:2, payload:0x01 0x02} }")
    (tmp_path / "x.cfg").write_text(
        "mem_reserve(pri_mem, 0x80000000, 0x10);\n"
        "poll_field_equal(NVDLA_CDMA.S_CBUF_FLUSH_STATUS_0, FLUSH_DONE, 0x1);\n"
        "sync_wait(NVDLA_SDP, sync_id_0); sync_notify(NVDLA_CDMA, sync_id_0);\n"
        'check_file(sync_id_0, pri_mem, 0x80000000, 0x4, "golden.dat");\n'
        'mem_init(sec_mem, 0x90000000, "golden.dat", RANDOM); // with a remark\n'
        "poll_reg_equal(NVDLA_CDMA, NVDLA_CDMA.S_CBUF_FLUSH_STATUS_0, 1);\n"
        "reg_read(NVDLA_CDMA.D_BANK_0, bank); reg_read_expected(NVDLA_CDMA.D_BANK_0, 0x0);\n"
        "reg_read_check(NVDLA_SDP.D_OP_ENABLE_0, 0x1);\n"
        "intr_notify(sync_id_1);\n"
    )
    found = trace.read(tmp_path)
    assert found.commands == (
        Poll(0x300C, 1, 1),
        Poll(0x300C, 0xFFFFFFFF, 1),
        Poll(0x30BC, 0xFFFFFFFF, 0),
        Wait(),
    )
    assert found.checks == (trace.CrcCheck(0x80000000, 4, zlib.crc32(b"\0\0\1\2")),)
    assert found.memory().read(0x90000000, 4) == b"\0\0\1\2"


def _txn(folder: Path, *lines: str) -> trace.Trace:
    (folder / "input.txn").write_text("\n".join(lines) + "\n")
    return trace.read(folder)


COPY = (
    "load_mem 0x80000000 0x40 source.dat # two lines of 32 bytes",
    "write_reg 0xffff1004 0x0 # BDMA.CFG_LINE: 32 bytes",
    "read_reg 0xffff1004 0x00001fff 0x00000000",
    "write_reg 0xffff1006 0x1 # BDMA.CFG_LINE_REPEAT: 2 lines",
    "write_reg 0xffff1007 0x20",
    "write_reg 0xffff1008 0x40",
    "write_reg 0xffff1000 0x80000000",
    "write_reg 0xffff1002 0x81000000",
    "write_reg 0xffff100c 0x1 # BDMA.CFG_OP",
    "write_reg 0xffff100d 0x1 # BDMA.CFG_LAUNCH0",
    "wait",
)
"""A copy of two lines to a place that nothing else names, its lines 64 bytes apart."""


def _source(folder: Path) -> None:
    """A dump with a header, and with one line more than is loaded."""
    rows = [" ".join(f"0x{32 * row + each:02x}" for each in range(32)) for row in range(3)]
    (folder / "source.dat").write_text("W=0x8\nH=0x1\n" + "\n".join(rows) + "\n")


def test_memory_that_a_program_does_not_name_is_0_and_can_be_written(tmp_path: Path) -> None:
    _source(tmp_path)
    found = _txn(tmp_path, *COPY, "dump_mem 0x81000000 0x60 absent.dat")
    assert found.checks == ()
    after = model.run(found.machine, found.commands, found.memory())
    assert after.read(0x81000000, 0x60) == bytes(range(32)) + bytes(32) + bytes(range(32, 64))


def test_what_a_program_reads_back_is_compared(tmp_path: Path) -> None:
    _source(tmp_path)
    found = _txn(tmp_path, *COPY, "read_reg 0xffff1008 0xffffffe0 0x00000020")
    with pytest.raises(ArtefactError, match="it stays 0x40"):
        model.run(found.machine, found.commands, found.memory())


def test_bytes_of_one_digit_are_read_and_what_is_no_byte_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "x.cfg"
    program.write_text('mem_load(pri_mem, 0x80000000, "x.dat");\n')
    (tmp_path / "x.dat").write_text("{offset:0x0, size:3, payload:0x1 0x2B 0x03}")
    assert trace.read(program).contents == ((0x80000000, b"\x01\x2b\x03"),)
    for payload in ("0x1 0x2b 0x100", "0x01 0xzz 0x03"):
        (tmp_path / "x.dat").write_text(f"{{offset:0x0, size:3, payload:{payload}}}")
        with pytest.raises(ArtefactError, match="no byte"):
            trace.read(program)


def test_a_dump_with_too_few_bytes_is_refused(tmp_path: Path) -> None:
    _source(tmp_path)
    with pytest.raises(ArtefactError, match="holds 96 bytes"):
        _txn(tmp_path, "load_mem 0x80000000 0x80 source.dat")


def test_the_folder_around_a_program_says_what_it_is_made_for(tmp_path: Path) -> None:
    for name, atom in (("nv_small", 8), ("nv_large", 32), ("mine", 8)):
        folder = tmp_path / name / "program"
        folder.mkdir(parents=True)
        (folder / "program.cfg").write_text("reg_write(NVDLA_CDMA.D_BANK_0, 0x2000b);\n")
        assert trace.read(folder).machine.atom_bytes == atom
    assert trace.read(folder, "nv_large").machine.atom_bytes == 32


def test_a_folder_without_a_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="0 programs"):
        trace.read(tmp_path)


def test_a_poll_of_some_bits_cannot_be_written() -> None:
    polled = trace.Trace("bits", "nv_small", (Poll(0x3000, 1, 0),), (), ())
    with pytest.raises(ArtefactError, match="under a mask"):
        trace.write_files(polled)


def test_units_in_lower_case_are_understood(tmp_path: Path) -> None:
    (tmp_path / "a.cfg").write_text(
        "reg_write(nvdla_cdma.S_POINTER_0, 0x1);\nintr_notify(cdma_dat_0, sync_id_0);\n"
    )
    found = trace.read(tmp_path / "a.cfg")
    assert found.commands == (Write(register_map("nv_small")["CDMA.S_POINTER"].address, 1), Wait("CDMA_DAT", 0))


def test_sequencers_run_in_an_order_that_sync_wait_allows(tmp_path: Path) -> None:
    """CDMA stands first in the file, and waits for CSC; interrupts are waited for where nothing else goes on."""
    lines = [
        "intr_notify(sdp_0, done)",
        "sync_wait(NVDLA_CDMA, ready)",
        "reg_write(NVDLA_CDMA.D_OP_ENABLE_0, 0x1)",
        "sync_wait(NVDLA_CDMA, done)",
        "reg_write(NVDLA_CDMA.S_POINTER_0, 0x1)",
        "reg_write(NVDLA_CSC.D_OP_ENABLE_0, 0x1)",
        "sync_notify(NVDLA_CSC, ready)",
    ]
    (tmp_path / "a.cfg").write_text(";\n".join(lines) + ";\n")
    known = register_map("nv_small")
    places = [known[each].address for each in ("CSC.D_OP_ENABLE", "CDMA.D_OP_ENABLE", "CDMA.S_POINTER")]
    assert trace.read(tmp_path / "a.cfg").commands == (
        Write(places[0], 1),
        Write(places[1], 1),
        Wait("SDP", 0),
        Write(places[2], 1),
    )


def test_sequencers_that_wait_for_ever_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.cfg").write_text("sync_wait(NVDLA_CDMA, never);\n")
    with pytest.raises(ArtefactError, match="never, which nothing announces"):
        trace.read(tmp_path / "a.cfg")


# Test programs for NVDLA's own environment: whatever order its sequencers take, the results are the same


CONSTANTS = {"w": weights(8, 3, 3, 3), "v": weights(8, 8, 3, 3), "b": np.ones(8, np.float32)}
STEM = node("Conv", "x w b", "a", pads=[1, 1, 1, 1])
NETWORKS = {
    "residual": [STEM, node("Relu", "a", "r"), node("Conv", "r v", "c", pads=[1, 1, 1, 1]),
        node("Add", "c r", "s"), node("AveragePool", "s", "y", kernel_shape=[2, 2], strides=[2, 2])],
    "segments": [STEM, node("Softmax", "a", "s", axis=1), node("Conv", "s v", "c", pads=[1, 1, 1, 1]),
        node("MaxPool", "c", "y", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])],
    "tables": [STEM, node("LRN", "a", "n", size=5, alpha=1.0, beta=0.75),
        node("Conv", "n v", "c", pads=[1, 1, 1, 1]), node("Sigmoid", "c", "y")],
}  # fmt: skip
CASES = [("residual", "nvdla-small"), ("segments", "nvdla-small"), ("tables", "nvdla-large")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case[0])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a network's test programs for sequencers, and its target."""
    network_name, name = request.param
    folder = tmp_path_factory.mktemp(network_name)
    _, _, program = compiled(network(NETWORKS[network_name], (1, 3, 16, 16), CONSTANTS), folder, name)
    out = folder / "trace"
    out.mkdir()
    for file, data in target(name).export(program, "nvdla-trace", "sequencers").items():
        (out / file).write_bytes(data)
    return out, name


@pytest.mark.parametrize("eager", [0.0, 0.3, 1.0], ids=["late interrupts", "some", "early interrupts"])
def test_any_order_that_the_calls_allow_gives_the_results(exported: tuple[Path, str], eager: float) -> None:
    folder, name = exported
    for config in sorted(folder.glob("*.cfg")):
        for seed in range(4):
            environment = Environment(config, machines.load(name), random.Random(seed), eager)
            assert environment.run() == config.read_text().count("check_crc") > 0


def test_a_sequential_player_gives_them_too(exported: tuple[Path, str]) -> None:
    folder, name = exported
    machine = machines.load(name)
    for config in sorted(folder.glob("*.cfg")):
        found = trace.read(config, machine.registers)
        after = model.run(machine, found.commands, found.memory())
        assert found.checks and all(check.holds(after) for check in found.checks)


def _plays(config: Path, name: str, seed: int) -> bool:
    """Whether the results are as expected, with interrupts as late as can be."""
    try:
        return Environment(config, machines.load(name), random.Random(seed), 0.0).run() > 0
    except (ArtefactError, AssertionError, Deadlock):
        return False


def test_without_their_waits_sequencers_race(exported: tuple[Path, str]) -> None:
    folder, name = exported
    for config in sorted(folder.glob("*.cfg")):
        lines = config.read_text().splitlines(keepends=True)
        loose = config.with_name(f"loose_{config.name}")
        loose.write_text("".join(each for each in lines if not each.startswith("sync_wait") or "finished" in each))
        assert not all(_plays(loose, name, seed) for seed in range(8))
        loose.unlink()


def test_the_buffer_is_polled_once_before_anything_is_enabled(exported: tuple[Path, str]) -> None:
    folder, _ = exported
    for config in sorted(folder.glob("*.cfg")):
        calls = [line for line in config.read_text().splitlines() if line.startswith(("poll", "reg"))]
        polled = [at for at, call in enumerate(calls) if call.startswith("poll_reg_equal(NVDLA_CDMA.S_CBUF_FLUSH")]
        enabled = [at for at, call in enumerate(calls) if ".D_OP_ENABLE_0" in call]
        assert len(polled) == 1 and enabled[0] == polled[0] + 1 > 50


FORMS = (
    r"mem_init\(pri_mem, 0x[0-9a-f]+, 0x[0-9a-f]+, ALL_ZERO\);",
    r'mem_load\(pri_mem, 0x[0-9a-f]+, "[\w.]+"\);',
    r"(reg_write|poll_reg_equal)\(NVDLA_[A-Z_]+\.[A-Z0-9_]+_0, 0x[0-9a-f]+\);",
    r"sync_(wait|notify)\(NVDLA_[A-Z_]+, \w+\);",
    r"intr_notify\((SDP|PDP|CDP)_[01], \w+\);",
    r"check_crc\(\w+, 1, 0x[0-9a-f]+, 0x[0-9a-f]+, 0x[0-9a-f]+\);",
)
"""The calls as the verification guide has them, one a line."""


def test_every_line_is_a_call_of_the_guide(exported: tuple[Path, str]) -> None:
    folder, _ = exported
    for config in sorted(folder.glob("*.cfg")):
        for line in config.read_text().splitlines():
            assert any(re.fullmatch(form, line) for form in FORMS), line


def test_every_program_begins_with_group_0(exported: tuple[Path, str]) -> None:
    folder, _ = exported
    for config in sorted(folder.glob("*.cfg")):
        first: dict[str, str] = {}
        for line in config.read_text().splitlines():
            if ".S_POINTER_0" in line:
                block, _, value = line.partition(".S_POINTER_0, ")
                first.setdefault(block, value)
        assert first and set(first.values()) == {"0x0);"}


TAKEN = (
    r"mem_init\(pri_mem, 0x[0-9a-f]+, 0x[0-9a-f]+, ALL_ZERO\);",
    r'mem_load\(pri_mem, 0x[0-9a-f]+, "[\w.]+"\);',
    r"(reg_write|poll_reg_equal)\(NVDLA_[A-Z_]+\.[A-Z0-9_]+_0, 0x[0-9a-f]+\);",
    r"intr_notify\((SDP|PDP|CDP)_[01], (\w+)\);",
    r"check_crc\((\w+), 1, 0x[89a-f][0-9a-f]{7}, 0x[0-9a-f]+, 0x[0-9a-f]+\);",
)
"""What the converter for NVDLA's Verilator test bench takes."""


@pytest.mark.parametrize(("network_name", "name"), CASES)
def test_the_verilator_test_bench_needs_neither_waits_nor_a_check_without_its_interrupt(
    network_name: str, name: str, tmp_path: Path
) -> None:
    _, _, program = compiled(network(NETWORKS[network_name], (1, 3, 16, 16), CONSTANTS), tmp_path, name)
    for file, data in target(name).export(program, "nvdla-trace", "verilator").items():
        (tmp_path / file).write_bytes(data)
    for config in sorted(tmp_path.glob("*.cfg")):
        lines = config.read_text().splitlines()
        assert all(any(re.fullmatch(form, line) for form in TAKEN) for line in lines)
        notified = [re.fullmatch(TAKEN[3], line) for line in lines if line.startswith("intr")]
        checked = [re.fullmatch(TAKEN[4], line) for line in lines if line.startswith("check")]
        assert len(notified) == len(checked) == 1 and notified[0] and checked[0]
        assert notified[0][2] == checked[0][1] and lines.index(notified[0][0]) > _last_enable(lines)
        machine = machines.load(name)
        found = trace.read(config, machine.registers)
        after = model.run(machine, found.commands, found.memory())
        assert all(check.holds(after) for check in found.checks)
        assert sum(isinstance(command, Poll) for command in found.commands) * 8 > 2000


def _last_enable(lines: list[str]) -> int:
    return max(at for at, line in enumerate(lines) if ".D_OP_ENABLE_0" in line)


def test_a_wait_that_the_verilator_test_bench_lacks_is_missed(tmp_path: Path) -> None:
    _, _, program = compiled(network(NETWORKS["residual"], (1, 3, 16, 16), CONSTANTS), tmp_path)
    for file, data in target("nvdla-small").export(program, "nvdla-trace", "verilator").items():
        (tmp_path / file).write_bytes(data)
    config = tmp_path / "trace_0.cfg"
    config.write_text("".join(x for x in config.read_text().splitlines(keepends=True) if ".S_STATUS_0" not in x))
    found = trace.read(config, "nv_small")
    with pytest.raises(ArtefactError):
        model.run(found.machine, found.commands, found.memory())
