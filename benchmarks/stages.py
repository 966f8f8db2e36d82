"""Where the time of a compile goes: commands that do more and more of it, compared with quantize_static.

    python benchmarks/stages.py [--repeat N] [--network NAME] [--json]

Every command is a whole process. They run in turn, and each ratio is that to the quantize_static of the same
round; medians are shown. "imports" and "samples" use none of npuc: any tool needs them that reads ONNX with
these libraries and calibrates with onnxruntime. `npuc quantize -O0` neither searches nor plans nor proves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click
from compile import YARDSTICK, cost
from networks import Network, searched
from outcome import conclude

IMPORTS = "import numpy, onnx, onnxruntime"
SAMPLES = """
import sys, numpy, onnx, onnxruntime
model, samples = onnx.load(sys.argv[1]), sys.argv[2]
known = {each.name for each in model.graph.output}
names = [name for node in model.graph.node for name in node.output]
model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
given = session.get_inputs()[0]
shape = [extent if isinstance(extent, int) else 1 for extent in given.shape]
with numpy.load(samples) as data:
    for each in data[given.name if given.name in data else "x"].astype("f4"):
        session.run(None, {given.name: each.reshape(shape)})
"""
"""A session with every tensor as an output, run on every sample; the results are thrown away."""
LIMITS = {"easynpu": 1.0, "nvdla-small": 1.3}


@dataclass(frozen=True)
class Row:
    """A command: its CPU seconds, and their ratio to quantize_static's."""

    network: str
    command: str
    cpu_seconds: float
    ratio: float
    limit: float | None = None

    @property
    def within(self) -> bool:
        """Whether the limit is met."""
        return self.limit is None or self.ratio <= self.limit


def commands(network: Network, folder: Path) -> dict[str, Sequence[str]]:
    """The commands by what they are called, quantize_static first."""
    python, output = (sys.executable, "-c"), str(folder / "q.onnx")
    found: dict[str, Sequence[str]] = {
        "quantize_static": (*python, YARDSTICK, network.model, network.samples, output),
        "imports": (*python, IMPORTS),
        "samples": (*python, SAMPLES, network.model, network.samples),
    }
    for target in LIMITS:
        for told in (
            ("quantize", "-O0"),
            ("quantize",),
            ("compile", "-O0", "--proof", "off"),
            ("compile", "--proof", "off"),
            ("compile",),
        ):
            result = output if told[0] == "quantize" else str(folder / "p.npu")
            given = ("--target", target, "--calibration", network.samples, "-o", result)
            name = f"npuc {' '.join(told)}, {target}"
            found[name] = (sys.executable, "-m", "npuc", told[0], network.model, *told[1:], *given)
    return found


def rows(network: Network, repeat: int, folder: Path) -> Iterator[Row]:
    """Measures the commands in turn."""
    known = commands(network, folder)
    rounds = [{name: cost(command, 1)[0] for name, command in known.items()} for _ in range(repeat)]
    for name in known:
        ratio = median(each[name] / each["quantize_static"] for each in rounds)
        limit = LIMITS.get(name.removeprefix("npuc compile, "))
        yield Row(network.name, name, median(each[name] for each in rounds), ratio, limit)


@click.command()
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds.")
@click.option("--network", "wanted", multiple=True, help="Only this network; may be repeated.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on stdout.")
@click.option("--check", is_flag=True, help="Exit code 1 if a limit is exceeded.")
def main(repeat: int, wanted: Sequence[str], json_wanted: bool, check: bool) -> None:
    """Measure the parts of a compile as whole processes."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        found = searched(wanted, folder)
        measured = [row for each in found for row in rows(each, repeat, folder)]
    header = ("network", "command", "CPU s", "of quantize_static's", "limit")
    conclude(header, measured, found, json_wanted=json_wanted, check=check)


if __name__ == "__main__":
    main()
