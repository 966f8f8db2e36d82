"""The EasyNPU core on an LFE5U-85F: cells and clock, by open tools only (npuc[fpga]: Yosys and nextpnr).

    python benchmarks/easynpu_fpga.py [--machine NAME|FILE] [--seeds 1,2,3] [--freq 50] [--folder DIR] [--json]

Placed and routed once per seed, as a result varies by some per cent with it. The clock is nextpnr's, for the
slowest grade (6), at 85 degrees. The folder keeps the netlist and the logs; a netlist that is there is not made
again. Exit code 1 if no seed reaches --freq.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from npuc.targets.easynpu.machine.parameters import load
from npuc.targets.easynpu.rtl.build import verilog
from npuc.text.terminal import as_json, table

JOINED = "easynpu easynpu_controller easynpu_loader easynpu_sequencer"
"""Blocks that control one another in every cycle, mapped as one; the others alone, which takes less time."""
MAP = (
    f"read_verilog -sv easynpu.sv; hierarchy -top easynpu; select -set joined {JOINED};"
    " setattr -mod -set keep_hierarchy 1 * @joined %d; synth_ecp5 -noabc9 -top easynpu;"
    " setattr -mod -unset keep_hierarchy *; flatten; opt_clean; write_json easynpu.json; tee -o cells.txt stat"
)
PLACE = ("--85k", "--package", "CABGA756", "--speed", "6", "--lpf-allow-unconstrained", "--timing-allow-fail")


def tool(name: str) -> str:
    """A tool's command, from its package or the path."""
    beside = Path(sys.executable).parent / f"yowasp-{name}"
    found = str(beside) if beside.is_file() else shutil.which(f"yowasp-{name}") or shutil.which(name)
    if found is None:
        raise click.ClickException(f"{name} is not installed: pip install 'npuc[fpga]'")
    return found


def run(command: list[str], folder: Path, log: str) -> None:
    """Runs a tool with its output in a file of the folder."""
    with (folder / log).open("w") as output:
        done = subprocess.run(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise click.ClickException(f"{Path(command[0]).name} fails: {folder / log}")


def place(folder: Path, seed: int, freq: float) -> dict[str, Any]:
    """Clock (MHz), cells (used, available) by type, and the longest path's ends, for a seed."""
    options = ["--json", "easynpu.json", "--freq", str(freq), "--seed", str(seed), "--router", "router2"]
    options += ["--report", f"seed{seed}.json"]
    run([tool("nextpnr-ecp5"), *PLACE, *options], folder, f"seed{seed}.log")
    report = json.loads((folder / f"seed{seed}.json").read_text())
    (clock,) = report["fmax"].values()
    path = next(each["path"] for each in report["critical_paths"] if each["from"] == each["to"])
    cells = {
        name: (each["used"], each["available"]) for name, each in report["utilization"].items() if each["used"]
    }
    ends = path[0]["from"]["cell"], path[-1]["to"]["cell"]
    return {"seed": seed, "MHz": round(clock["achieved"], 2), "cells": cells, "from": ends[0], "to": ends[1]}


@click.command()
@click.option("--machine", default="default", help="A shipped machine, or a machine file.")
@click.option("--seeds", default="1,2,3", help="nextpnr's seeds.")
@click.option("--freq", default=50.0, help="The clock that is asked for, in MHz.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("fpga"), help="Netlist, logs and reports.")
@click.option("--json", "json_", is_flag=True, help="Print JSON.")
def main(machine: str, seeds: str, freq: float, folder: Path, *, json_: bool) -> None:
    """Maps, places and routes the core."""
    folder.mkdir(parents=True, exist_ok=True)
    text = verilog(load(machine))
    source, netlist = folder / "easynpu.sv", folder / "easynpu.json"
    if not netlist.is_file() or source.read_text() != text:
        netlist.unlink(missing_ok=True)
        source.write_text(text)
        run([tool("yosys"), "-p", MAP], folder, "yosys.log")
    found = [place(folder, int(seed), freq) for seed in re.findall(r"\d+", seeds)]
    if json_:
        click.echo(as_json({"machine": machine, "device": "LFE5U-85F-6", "runs": found}))
    else:
        cells = ((name, used, of, f"{used / of:.0%}") for name, (used, of) in found[0]["cells"].items())
        click.echo(table(("cell", "used", "of", ""), [[str(each) for each in row] for row in cells]))
        rows = [[str(each[name]) for name in ("seed", "MHz", "from", "to")] for each in found]
        click.echo(table(("seed", "MHz", "from", "to"), rows))
    sys.exit(max(each["MHz"] for each in found) < freq)


if __name__ == "__main__":
    main()
