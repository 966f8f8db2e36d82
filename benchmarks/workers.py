"""Seconds of `npuc accuracy` on this machine and on a local Dask cluster, by the number of workers.

    python benchmarks/workers.py [--samples N] [--workers N ...] [--json] [--check] [--history compare|append]

The network is MobileNetV1-0.25 on EasyNPU, the cluster distributed.LocalCluster with one process per worker, which
has run a few samples before timing starts. Needs npuc[dask]. The reports must be the same to the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import click
import distributed
from history import conclude, follow, history_option, note_option
from networks import networks

from npuc import program, running
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.verification.accuracy import JudgedFiles, accuracy
from npuc.verification.judging.choosing import Asked
from tests.compiled import compilation

NETWORK = "MobileNetV1-0.25"
FILES = 8


@dataclass(frozen=True)
class Row:
    """Wall seconds by number of workers (0: in this process), and the ratio to this process."""

    workers: int
    samples: int
    seconds: float
    ratio: float
    same: bool
    """Whether the report equals that of this process."""

    @property
    def within(self) -> bool:
        """Whether the report is the same; times have no limit, as they depend on the machine."""
        return self.same


@click.command()
@click.option("--samples", type=click.IntRange(min=FILES), default=1024, show_default=True)
@click.option("--workers", type=click.IntRange(min=1), multiple=True, default=(1, 2), show_default=True)
@click.option("--json", "json_wanted", is_flag=True, help="One JSON object on stdout.")
@click.option("--check", is_flag=True, help="Exit code 1 if a report differs.")
@history_option
@note_option
def main(
    samples: int, workers: tuple[int, ...], json_wanted: bool, check: bool, history: str | None, note: str
) -> None:
    """Measure accuracy on one process and on a cluster."""
    with TemporaryDirectory() as folder:
        found = [each for each in networks(folder) if each.name == NETWORK]
        model, directory, files = Path(found[0].model), Path(folder) / "m.npu", Path(folder) / "samples"
        made = compilation(Request(model, target("easynpu"), Options(), [Path(found[0].samples)])).program
        program.save(made, directory)
        loaded = program.load(directory)
        files.mkdir()
        for number in range(FILES):
            inputs = data.synthetic(running.program_inputs(loaded), samples // FILES, seed=number).inputs
            data.save(files / f"{number}.npz", inputs)
        subject = JudgedFiles(model.absolute(), directory)
        alone, report = _seconds(subject, loaded, files)
        rows = [Row(0, report["samples"], alone, 1.0, same=True)]
        for count in workers:
            with distributed.LocalCluster(
                n_workers=count, threads_per_worker=1, dashboard_address=":0"
            ) as cluster:
                _seconds(subject, loaded, files / "0.npz", cluster.scheduler_address)
                taken, other = _seconds(subject, loaded, files, cluster.scheduler_address)
            rows.append(Row(count, report["samples"], taken, taken / alone, same=other == report))
    header = ("workers", "samples", "s", "of one process", "same report")
    conclude(header, rows, found, json_wanted=json_wanted, check=check)
    follow("workers", {f"workers: {row.workers}": row.ratio for row in rows[1:]}, history, note)


def _seconds(
    subject: JudgedFiles, loaded: Any, files: Path, scheduler: str | None = None
) -> tuple[float, dict[str, Any]]:
    started = perf_counter()
    report = accuracy(subject, loaded, [files], Asked("regression"), scheduler=scheduler)
    return perf_counter() - started, report


if __name__ == "__main__":
    main()
