"""The parts of one compile in CPU time, and how much of each part onnxruntime takes to run networks.

    python benchmarks/parts.py [--repeat N] [--network NAME] [--json] [--check] [-- OPTION..]

The process is interrupted after every millisecond of CPU time; the innermost function that PARTS lists gets the
time. Interruptions take time, too. So a part is stated as its share of the time, times the ratio of a compile
without interruptions to quantize_static, all measured in turn. Medians are shown. What follows -- goes to compile:
`-- -O0 --proof off` neither searches nor proves.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click
from compile import cost, yardstick_of
from history import conclude
from networks import Network, select

SAMPLER = """
import collections, json, runpy, signal, sys, time
found, parts = collections.Counter(), json.loads(sys.argv[1])
runs = [f"onnxruntime_inference_collection.py:{name}" for name in ("run", "run_with_iobinding")]

def sampled(_number, frame):
    global last
    now, part, running = time.process_time(), "the rest", False
    while frame is not None:
        place = frame.f_code.co_filename.rpartition("/")[2] + ":" + frame.f_code.co_name
        running |= place in runs
        if place in parts:
            part = parts[place]
            break
        frame = frame.f_back
    found[part] += now - last
    found[part + ", onnxruntime"] += (now - last) * running
    last = time.process_time()

output, sys.argv = sys.argv[2], ["npuc", *sys.argv[3:]]
last = 0.0
signal.signal(signal.SIGPROF, sampled)
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
try:
    runpy.run_module("npuc", run_name="__main__")
finally:
    signal.setitimer(signal.ITIMER_PROF, 0)
    open(output, "w").write(json.dumps(found))
"""
PARTS: Mapping[str, Sequence[str]] = {
    "imports": ("<frozen importlib._bootstrap>:_find_and_load",),
    "model, samples, passes": ("planning.py:plan_model", "planning.py:settle", "loading.py:load"),
    "calibration": ("results.py:node_histograms",),
    "equalisation and evidence": ("search.py:_equalise", "evidence.py:sample_windows"),
    "scales and weights": ("build.py:quantise", "__init__.py:quantise"),
    "judge": ("acceptance.py:noise", "acceptance.py:acceptance"),
    "lockstep, integer layers": ("lockstep.py:_run",),
    "lockstep, weights and biases": ("lockstep.py:improve_layers",),
    "planning and words": ("lowering.py:lower",),
    "report and files": (
        "report.py:manifest",
        "evidence.py:evidence",
        "program.py:save",
        "compilation.py:_with_rewrites",
    ),
    "proof": ("proof.py:prove",),
}
"""File and name of the functions of each part."""
REST, WHOLE = "the rest", "together"
LIMITS = {"easynpu": 1.0, "nvdla-small": 1.3}
"""The most of a whole compile."""


@dataclass(frozen=True)
class Row:
    """A part, and what onnxruntime takes of it, in the time of quantize_static."""

    network: str
    target: str
    part: str
    ratio: float
    onnxruntime: float

    @property
    def within(self) -> bool:
        """Whether the whole compile keeps its limit; parts have none."""
        return self.part != WHOLE or self.ratio <= LIMITS[self.target]


def rows(network: Network, target: str, repeat: int, folder: Path, told: Sequence[str]) -> Iterator[Row]:
    """Measures quantize_static, a compile, and a sampled compile in turn."""
    places = json.dumps({place: part for part, names in PARTS.items() for place in names})
    output, shares = folder / "parts.json", list[Counter[str]]()
    options = ("--target", target, "--calibration", network.samples, "-o", str(folder / "p.npu"))
    command = ("compile", network.model, *options, *told)
    yardstick = yardstick_of(network, folder / "q.onnx")
    for _ in range(repeat):
        ratio = cost((sys.executable, "-m", "npuc", *command), 1)[0] / cost(yardstick, 1)[0]
        cost((sys.executable, "-c", SAMPLER, places, str(output), *command), 1)
        found = json.loads(output.read_text())
        whole = sum(found.get(part, 0.0) for part in (*PARTS, REST))
        shares.append(Counter({name: ratio * seconds / whole for name, seconds in found.items()}))
        for suffix in ("", ", onnxruntime"):
            shares[-1][WHOLE + suffix] = sum(shares[-1][part + suffix] for part in (*PARTS, REST))
    for part in (*PARTS, REST, WHOLE):
        both = (median(each[name] for each in shares) for name in (part, f"{part}, onnxruntime"))
        yield Row(network.name, target, part, *both)


@click.command()
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds.")
@click.option("--network", "wanted", multiple=True, help="Only this network; may be repeated.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on stdout.")
@click.option("--check", is_flag=True, help="Exit code 1 if a limit is exceeded.")
@click.argument("told", nargs=-1)
def main(repeat: int, wanted: Sequence[str], json_wanted: bool, check: bool, told: Sequence[str]) -> None:
    """Measure the parts of a compile by sampling."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = select(wanted, folder)
        measured = [row for each in found for target in LIMITS for row in rows(each, target, repeat, folder, told)]
    header = ("network", "target", "part", "of quantize_static's", "onnxruntime")
    conclude(header, measured, found, json_wanted=json_wanted, check=check)


if __name__ == "__main__":
    main()
