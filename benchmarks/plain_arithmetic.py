"""Random networks on NVDLA: every layer of every program compared with plain arithmetic, not only on noise.

    python benchmarks/plain_arithmetic.py [--networks N] [--seed S]

Prints a line for each network of which an element differs from numpy's result for its description; exit status 1
if there is one. tests/nvdla/test_plain_arithmetic.py does the same with a few networks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from npuc.errors import NpucError
from npuc.onnx_files.export import to_onnx
from tests.graphs.drawn import drawn
from tests.nvdla.against_plain import CONFIGURATIONS, compared
from tests.nvdla.test_random_networks import BORDERS


@click.command()
@click.option("--networks", default=2000, show_default=True, help="How many.")
@click.option("--seed", default=20_000, show_default=True, help="Of the first one.")
def main(networks: int, seed: int) -> None:
    """Compiles, runs and compares."""
    layers, refused, wrong = 0, 0, 0
    with TemporaryDirectory() as folder:
        for number in range(seed, seed + networks):
            name, precision = CONFIGURATIONS[number % len(CONFIGURATIONS)]
            try:
                count, differing = compared(to_onnx(drawn(number, **BORDERS)[0]), Path(folder), name, precision)
            except NpucError:
                refused += 1
                continue
            layers += count
            if differing:
                wrong += 1
                click.echo(f"seed {number} on {name} in {precision}: {', '.join(differing)}")
    click.echo(
        f"{networks} networks, {refused} refused; {layers} layers of samples compared; {wrong} networks differ"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
