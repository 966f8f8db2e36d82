"""Descriptions of frames, for every target: programs on bytes against the model's floats (tests/images/sweep.py).

python benchmarks/frames.py [--count N] [--seed S] [--only TEXT]

Every target, order, frame, layout and mean occurs with every other. Padding, the model's axes, the node before
the convolution and the bits are drawn: tests/images/test_sweep.py shows which pairs occur. Exit code 1 if a result
is off by more than a step, or at all where integers decide it.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import click

from tests.images.sweep import check, covering


@click.command()
@click.option("--count", default=10_000, help="At most so many cases.")
@click.option("--seed", default=0)
@click.option("--only", default="", help="A part of a case's text, such as 'bm1684/int8' or 'nv12'.")
def main(count: int, seed: int, only: str) -> None:
    """Prints every case that is wrong."""
    found = done = 0
    with TemporaryDirectory() as folder:
        for case in islice((each for each in covering(seed) if only in str(each)), count):
            try:
                wrong = check(case, Path(folder))
            except Exception as error:
                wrong = f"{type(error).__name__}: {str(error)[:300]}"
            done += 1
            found += wrong is not None
            if wrong:
                click.echo(f"{case}: {wrong}")
    click.echo(f"{found} of {done} wrong")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
