"""CPU seconds, peak memory and modelled cycles of large networks on NVDLA: compile, then verify one sample.

    python benchmarks/large_networks.py [--network NAME].. [--target NAME].. [--precision P] [--json] [--check]

The onnx package's light models with random weights in place of their constants; calibration data is synthetic.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from compile import cost
from history import conclude
from networks import Network, light

NAMES = {
    "AlexNet": "bvlc_alexnet",
    "SqueezeNet": "squeezenet",
    "ShuffleNet": "shufflenet",
    "GoogLeNet": "inception_v1",
    "Inception v2": "inception_v2",
    "DenseNet-121": "densenet121",
    "ResNet-50": "resnet50",
    "ZFNet-512": "zfnet512",
    "VGG-19": "vgg19",
}
TARGETS = ("nvdla-small", "nvdla-large", "nvdla-full")
COMPILE_SECONDS, COMPILE_MB = 60.0, 2500.0
VERIFY_SECONDS, VERIFY_MB = 180.0, 3000.0
ANY = ("--min-sqnr", "-999", "--min-cosine", "-1")
"""Random weights say nothing about accuracy."""
RESNET50_SECONDS = 20.0


@dataclass(frozen=True)
class Row:
    """A network on a target; bit_exact: the functional model and the integer network agree."""

    network: str
    target: str
    compile_seconds: float
    compile_mb: float
    cycles: int
    verify_seconds: float
    verify_mb: float
    bit_exact: bool

    @property
    def within(self) -> bool:
        """Whether all limits are met."""
        fast = self.compile_seconds < (RESNET50_SECONDS if self.network == "ResNet-50" else COMPILE_SECONDS)
        small = self.compile_mb < COMPILE_MB and self.verify_mb < VERIFY_MB
        return self.bit_exact and fast and small and self.verify_seconds < VERIFY_SECONDS


def row(name: str, model: Path, target: str, precision: str) -> Row:
    """Measures one network on one target."""
    npuc, program, printed = (sys.executable, "-m", "npuc"), model.with_suffix(".npu"), model.with_suffix(".json")
    options = ("--target", target, "--precision", precision, "-o", str(program), "--json")
    compiled = cost([*npuc, "compile", str(model), "--calibration", "synthetic", *options], 1, printed)
    cycles = json.loads(printed.read_bytes())["cycles"]
    verified = cost([*npuc, "verify", str(model), str(program), "--samples", "1", *ANY, "--json"], 1, printed)
    found = json.loads(printed.read_bytes())
    return Row(name, target, *compiled, cycles, *verified, found["bit_exact"])


def rows(names: tuple[str, ...], targets: tuple[str, ...], precision: str) -> Iterator[Row]:
    """The rows, network by network; files of one are removed before the next."""
    for name in names:
        with TemporaryDirectory() as folder:
            model = light(NAMES[name], Path(folder))
            for target in targets:
                yield row(name, model, target, precision)


@click.command()
@click.option("--network", "names", type=click.Choice(list(NAMES)), multiple=True, help="A network [all].")
@click.option("--target", "targets", type=click.Choice(TARGETS), multiple=True, help="A target [all].")
@click.option("--precision", type=click.Choice(("int8", "int16")), default="int8", show_default=True)
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on stdout.")
@click.option("--check", is_flag=True, help="Exit code 1 if a limit is exceeded or a bit differs.")
def main(names: tuple[str, ...], targets: tuple[str, ...], precision: str, json_wanted: bool, check: bool) -> None:
    """Measure large networks on NVDLA."""
    measured = list(rows(names or tuple(NAMES), targets or TARGETS, precision))
    found = [Network(each, f"light_{NAMES[each]}, random weights", "", "") for each in names or NAMES]
    header = ("network", "target", "compile s", "MB", "cycles", "verify s", "MB", "bit exact")
    conclude(header, measured, found, json_wanted=json_wanted, check=check)


if __name__ == "__main__":
    main()
