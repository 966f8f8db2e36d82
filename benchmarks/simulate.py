"""CPU time per sample of npuc's simulator and of onnxruntime on the fp32 model: one thread, without loading.

    python benchmarks/simulate.py [--samples N] [--json] [--check] [--history compare|append]

Both run the same samples: the simulator in its batches and one by one, onnxruntime one by one, as models demand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import click
import onnxruntime
from history import conclude, follow, history_option, note_option
from networks import Network, networks

from npuc import program, running
from npuc.samples.loading import synthetic
from npuc.target import Options, Request, target
from tests.compiled import compilation


@dataclass(frozen=True)
class Row:
    """Milliseconds of CPU time per sample."""

    network: str
    samples: int
    npuc_ms: float
    onnxruntime_ms: float
    ratio: float
    alone: float
    """The ratio one sample at a time."""

    @property
    def within(self) -> bool:
        """Always: times have no limit of their own."""
        return True


def row(network: Network, count: int, folder: Path) -> Row:
    """Measures both on the same samples, after a warm-up."""
    easynpu, directory = target("easynpu"), folder / f"{network.name}.npu"
    compiled = compilation(Request(Path(network.model), easynpu, Options(), [Path(network.samples)])).program
    program.save(compiled, directory)
    loaded = program.load(directory)
    samples = synthetic(running.program_inputs(loaded), count)
    batches = [each.inputs for each in samples.batches(running.batch_of(loaded))]
    run = easynpu.runner(loaded)
    simulated = _seconds(run, batches)
    alone = _seconds(run, [each.inputs for each in samples.batches(1)])
    exact = _seconds(_session(network.model), list(samples.feeds()))
    times = 1e3 * simulated / count, 1e3 * exact / count, simulated / exact
    return Row(network.name, count, *times, alone / exact)


def _session(model: str) -> Callable[[Any], Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run(feeds: Any) -> Any:
        return session.run(None, feeds)

    return run


def _seconds(run: Callable[[Any], Any], feeds: Sequence[Any]) -> float:
    """The least CPU time of three rounds over all feeds."""
    run(feeds[0])
    run(feeds[0])
    rounds: list[float] = []
    for _ in range(3):
        started = process_time()
        for each in feeds:
            run(each)
        rounds.append(process_time() - started)
    return min(rounds)


@click.command()
@click.option("--samples", type=click.IntRange(min=1), default=128, show_default=True, help="Samples a round.")
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on stdout.")
@click.option("--check", is_flag=True, help="Exit code 1 if the limit is exceeded.")
@history_option
@note_option
def main(samples: int, json_wanted: bool, check: bool, history: str | None, note: str) -> None:
    """Measure the simulator's CPU time per sample."""
    with TemporaryDirectory() as folder:
        found = networks(folder)
        measured = [row(network, samples, Path(folder)) for network in found]
    header = ("network", "samples", "npuc ms", "onnxruntime ms", "ratio", "one by one")
    conclude(header, measured, found, json_wanted=json_wanted, check=check)
    ratios = {row.network: row.ratio for row in measured} | {
        f"{row.network}, alone": row.alone for row in measured
    }
    follow("simulate", ratios, history, note)


if __name__ == "__main__":
    main()
