"""Descriptions of frames, for every target: programs on bytes against the model's floats (tests/images/sweep.py).

python benchmarks/frames.py [--count N] [--seed S] [--only TEXT]

Exit code 1 if a result is off by more than a step, or at all where integers decide it.
"""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import click

from tests.images.sweep import cases, check


@click.command()
@click.option("--count", default=1000, help="Cases of all, in an order that the seed draws.")
@click.option("--seed", default=0)
@click.option("--only", default="", help="A part of a case's text, such as 'bm1684/int8' or 'nv12'.")
def main(count: int, seed: int, only: str) -> None:
    """Prints every case that is wrong."""
    found = 0
    with TemporaryDirectory() as folder:
        for case in islice((each for each in cases(seed) if only in str(each)), count):
            try:
                wrong = check(case, Path(folder))
            except Exception as error:
                wrong = f"{type(error).__name__}: {str(error)[:300]}"
            found += wrong is not None
            if wrong:
                click.echo(f"{case}: {wrong}")
    click.echo(f"{found} wrong")
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
