"""The memory that calibration takes with data larger than that memory.

    python benchmarks/calibration_memory.py [MODEL] [--bytes 1e9]

Writes a file of the given size, compressed and not, and compiles the model with it in a separate process; the peak
is the system's figure for that process. For comparison, the same with eight samples.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

import click
import numpy as np
from compile import cost

from npuc import running
from npuc.frontend import load as import_model
from npuc.text.terminal import table

ROOT = Path(__file__).resolve().parents[1]


def write(path: Path, shape: tuple[int, ...], count: int, *, compressed: bool) -> None:
    """Synthetic float64 images in 0..1, sample by sample, only a few of them different."""
    random = np.random.default_rng(0)
    some = [np.round(random.uniform(0, 1, shape), 2).tobytes() for _ in range(8)]
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    header = {"descr": "<f8", "fortran_order": False, "shape": (count, *shape)}
    with (
        zipfile.ZipFile(path, "w", kind, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_1_0(file, header)
        for index in range(count):
            file.write(some[index % len(some)])


@click.command()
@click.argument("model", type=Path, default=ROOT / "models" / "digits.onnx")
@click.option("--bytes", "total", type=float, default=1e9, show_default=True)
@click.option("--level", type=click.Choice(("0", "1", "2")), default="0", show_default=True)
def main(model: Path, total: float, level: str) -> None:
    """Print samples, MB at the peak and CPU seconds for files of both kinds."""
    (each,) = running.input_types(import_model(model)).values()
    size = 8 * int(np.prod(each.shape))
    rows: list[tuple[str, int, str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.npz"
        for name, count, compressed in (
            ("few", 8, False),
            ("stored", int(total / size), False),
            ("compressed", int(total / size), True),
        ):
            write(path, each.shape, count, compressed=compressed)
            given = ("--calibration", str(path), "-O", level, "--proof", "off", "--force", "-o", f"{folder}/m.npu")
            command = (sys.executable, "-m", "npuc", "compile", str(model), "--target", "easynpu", *given)
            seconds, megabytes = cost(command, 1)
            rows.append((name, count, f"{megabytes:.0f}", f"{seconds:.1f}"))
    click.echo(table(("file", "samples", "MB", "CPU s"), rows))


if __name__ == "__main__":
    main()
