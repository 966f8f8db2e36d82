"""CPU seconds and peak memory of npuc's commands as whole processes, compared with onnxruntime's quantize_static.

    python benchmarks/compile.py [--repeat N] [--json] [--check] [--history compare|append]

Of several runs, the least CPU time (user and system) and the most memory are taken.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from history import conclude, follow, history_option, note_option
from networks import Network, light, networks
from quantisers import PROGRAMS, READ

HELP_LIMIT = 0.12
COMPILE_LIMITS = {"ResNet-8": 1.0, "MobileNetV1-0.25": 1.2}
MB_LIMIT = 200.0
PROVED = "MobileNetV1-0.25"
"""The network whose proof has a limit, in addition to the onnx package's light ResNet-50."""
PROOF_LIMIT = 0.15
"""The limit of a proof's time, relative to the compile without it."""


@dataclass(frozen=True)
class Row:
    """A measured command, with its ratio to quantize_static on the same model (None without a model)."""

    command: str
    network: str | None
    cpu_seconds: float
    peak_mb: float
    ratio: float | None = None
    cpu_limit: float | None = None
    mb_limit: float | None = None

    @property
    def within(self) -> bool:
        """Whether all limits are met."""
        limits = ((self.cpu_seconds, self.cpu_limit), (self.peak_mb, self.mb_limit))
        return all(limit is None or value < limit for value, limit in limits)


def cost(command: Sequence[str], repeat: int, output: Path = Path(os.devnull)) -> tuple[float, float]:
    """CPU seconds and peak MB of a command. Raises CalledProcessError if it fails.

    output: receives the output of the last run.
    """
    runs = [_run(command, output) for _ in range(repeat)]
    return min(seconds for seconds, _ in runs), max(megabytes for _, megabytes in runs)


def _run(command: Sequence[str], output: Path) -> tuple[float, float]:
    with output.open("wb") as printed:
        child = subprocess.Popen(command, stdout=printed, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS, in KB elsewhere
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e6


def yardstick_of(network: Network, output: Path) -> list[str]:
    """The command of quantize_static per channel, with MinMax, on the same samples."""
    given = [network.model, network.samples, str(output), "MinMax", "int8"]
    return [sys.executable, "-c", READ + PROGRAMS["onnxruntime"], *given]


def rows(found: Sequence[Network], repeat: int, folder: str) -> Iterator[Row]:
    """Measures the help, then quantize_static, compile and verify for every network."""
    npuc = (sys.executable, "-m", "npuc")
    yield Row("npuc --help", None, *cost([*npuc, "--help"], repeat), cpu_limit=HELP_LIMIT)
    for network in found:
        program = str(Path(folder) / f"{network.name}.npu")
        yardstick = cost(yardstick_of(network, Path(folder) / f"{network.name}.onnx"), repeat)
        yield Row("quantize_static", network.name, *yardstick, ratio=1.0)
        options = ["--target", "easynpu", "--calibration", network.samples, "-o", program]
        seconds, megabytes = cost([*npuc, "compile", network.model, *options], repeat)
        limits = (COMPILE_LIMITS.get(network.name), MB_LIMIT)
        yield Row("npuc compile", network.name, seconds, megabytes, seconds / yardstick[0], *limits)
        options = ["--data", network.samples, "--samples", "8", "--min-sqnr", "0", "--min-cosine", "0"]
        seconds, megabytes = cost([*npuc, "verify", network.model, program, *options], repeat)
        yield Row("npuc verify", network.name, seconds, megabytes, seconds / yardstick[0])


def proofs(found: Sequence[Network], repeat: int, folder: str) -> Iterator[Row]:
    """CPU seconds of a compile without its proof, and of the proof."""
    mobilenet = next(each for each in found if each.name == PROVED)
    resnet, synthetic = str(light("resnet50", Path(folder))), ("--calibration", "synthetic")
    for name, model, options in (
        (PROVED, mobilenet.model, ("--target", "easynpu", "--calibration", mobilenet.samples)),
        ("light ResNet-50", resnet, ("--target", "easynpu", "--machine", "large", *synthetic)),
        ("light ResNet-50", resnet, ("--target", "nvdla-full", *synthetic)),
    ):
        command = (
            sys.executable,
            "-m",
            "npuc",
            "compile",
            model,
            *options,
            "-o",
            str(Path(folder) / "proved.npu"),
        )
        (without, peak), (seconds, megabytes) = (
            cost([*command, "--proof", each], repeat) for each in ("off", "one")
        )
        where = f"{name}, {' '.join(options[1:4:2])}" if name != PROVED else name
        yield Row("npuc compile --proof off", where, without, peak)
        yield Row("its proof", where, seconds - without, megabytes, cpu_limit=PROOF_LIMIT * without)


@click.command()
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True, help="Runs of each command.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on stdout.")
@click.option("--check", is_flag=True, help="Exit code 1 if a limit is exceeded.")
@history_option
@note_option
def main(repeat: int, json_wanted: bool, check: bool, history: str | None, note: str) -> None:
    """Measure npuc's commands as whole processes."""
    with TemporaryDirectory() as folder:
        found = networks(folder)
        measured = [*rows(found, repeat, folder), *proofs(found, repeat, folder)]
    header = ("command", "network", "CPU s", "peak MB", "of quantize_static's", "limit s", "limit MB")
    conclude(header, measured, found, json_wanted=json_wanted, check=check)
    known = {f"{row.command}, {row.network}": row.ratio for row in measured if row.ratio is not None}
    follow("compile", {name: ratio for name, ratio in known.items() if ratio != 1}, history, note)


if __name__ == "__main__":
    main()
