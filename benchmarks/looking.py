"""CPU seconds of inspecting programs: verification of ResNet-8 on many samples, and reports of ResNet-50.

    python benchmarks/looking.py [--repeat N] [--json] [--check]

ResNet-50 is the onnx package's light model, at 224 x 224, with random weights in place of its constants.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from compile import cost
from history import conclude
from networks import Network, light, networks

from npuc.registry import TARGETS
from npuc.samples.loading import save

SAMPLES = 200
VERIFY_SECONDS = 5.0
REPORT_SECONDS, REPORT_MB = 10.0, 5.0
LARGE = {"easynpu": ("--machine", "large")}
"""The machine that ResNet-50 is compiled for."""


@dataclass(frozen=True)
class Row:
    """A measured command. MB: the size of its output."""

    command: str
    network: str
    target: str
    cpu_seconds: float
    cpu_limit: float
    mb: float | None = None
    mb_limit: float | None = None

    @property
    def within(self) -> bool:
        """Whether all limits are met."""
        small = self.mb is None or self.mb_limit is None or self.mb < self.mb_limit
        return self.cpu_seconds < self.cpu_limit and small


def rows(network: Network, folder: Path, repeat: int) -> Iterator[Row]:
    """Measures verify on every target, then report on the targets of ResNet-50."""
    npuc = (sys.executable, "-m", "npuc")
    samples = _many(network, folder / "samples.npz")
    for target in TARGETS:
        program = str(folder / f"{target}.npu")
        options = ("--target", target, "--calibration", network.samples, "-o", program)
        cost([*npuc, "compile", network.model, *options], 1)
        options = ("--data", str(samples), "--min-sqnr", "0", "--min-cosine", "0")
        seconds, _ = cost([*npuc, "verify", network.model, program, *options], repeat)
        yield Row(f"npuc verify, {SAMPLES} samples", network.name, target, seconds, VERIFY_SECONDS)
    model = light("resnet50", folder)
    for target in TARGETS:
        yield _report(npuc, model, target, folder, repeat)


def _report(npuc: Sequence[str], model: Path, target: str, folder: Path, repeat: int) -> Row:
    program, page = folder / f"resnet50.{target}.npu", folder / f"resnet50.{target}.html"
    options = ("--target", target, *LARGE.get(target, ()), "--calibration", "synthetic", "-o", str(program))
    cost([*npuc, "compile", str(model), *options], 1)
    seconds, _ = cost([*npuc, "report", str(program), "-o", str(page)], repeat)
    size = page.stat().st_size / 1e6
    return Row("npuc report", "ResNet-50", target, seconds, REPORT_SECONDS, size, REPORT_MB)


def _many(network: Network, path: Path) -> Path:
    """The network's samples, repeated."""
    with np.load(network.samples) as file:
        (name, *_) = [name for name in file.files if name != "y"]
        save(path, {name: np.resize(file[name], (SAMPLES, *file[name].shape[1:]))})
    return path


@click.command()
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each command.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on stdout.")
@click.option("--check", is_flag=True, help="Exit code 1 if a limit is exceeded.")
def main(repeat: int, json_wanted: bool, check: bool) -> None:
    """Measure what looking at programs costs."""
    with TemporaryDirectory() as folder:
        (resnet8,) = [each for each in networks(folder) if each.name == "ResNet-8"]
        measured = list(rows(resnet8, Path(folder), repeat))
    header = ("command", "network", "target", "CPU s", "limit s", "MB", "limit MB")
    conclude(header, measured, [resnet8], json_wanted=json_wanted, check=check)


if __name__ == "__main__":
    main()
