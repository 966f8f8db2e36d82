"""Test programs for NVDLA's own environment: whatever order its sequencers take, the results are the same."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.target import target
from npuc.targets.nvdla import model, trace
from npuc.targets.nvdla.machine import parameters as machines
from npuc.targets.nvdla.machine.commands import Poll
from tests.nvdla.networks import compiled
from tests.nvdla.sequencers import Deadlock, Environment
from tests.onnx_models import network, node, weights

CONSTANTS = {"w": weights(8, 3, 3, 3), "v": weights(8, 8, 3, 3), "b": np.ones(8, np.float32)}
STEM = node("Conv", "x w b", "a", pads=[1, 1, 1, 1])
NETWORKS = {
    "residual": [
        STEM,
        node("Relu", "a", "r"),
        node("Conv", "r v", "c", pads=[1, 1, 1, 1]),
        node("Add", "c r", "s"),
        node("AveragePool", "s", "y", kernel_shape=[2, 2], strides=[2, 2]),
    ],
    "segments": [
        STEM,
        node("Softmax", "a", "s", axis=1),
        node("Conv", "s v", "c", pads=[1, 1, 1, 1]),
        node("MaxPool", "c", "y", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    ],
    "tables": [
        STEM,
        node("LRN", "a", "n", size=5, alpha=1.0, beta=0.75),
        node("Conv", "n v", "c", pads=[1, 1, 1, 1]),
        node("Sigmoid", "c", "y"),
    ],
}
CASES = [("residual", "nvdla-small"), ("segments", "nvdla-small"), ("tables", "nvdla-large")]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case[0])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a network's test programs for sequencers, and its target."""
    network_name, name = request.param
    folder = tmp_path_factory.mktemp(network_name)
    _, _, program = compiled(network(NETWORKS[network_name], (1, 3, 16, 16), CONSTANTS), folder, name)
    out = folder / "trace"
    out.mkdir()
    for file, data in target(name).exported(program, "nvdla-trace", "sequencers").items():
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
    for file, data in target(name).exported(program, "nvdla-trace", "verilator").items():
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
    for file, data in target("nvdla-small").exported(program, "nvdla-trace", "verilator").items():
        (tmp_path / file).write_bytes(data)
    config = tmp_path / "trace_0.cfg"
    config.write_text("".join(x for x in config.read_text().splitlines(keepends=True) if ".S_STATUS_0" not in x))
    found = trace.read(config, "nv_small")
    with pytest.raises(ArtefactError):
        model.run(found.machine, found.commands, found.memory())
