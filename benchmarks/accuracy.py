"""Accuracy of npuc's integer networks beside fp32 and onnxruntime's own quantisation, task by task.

    python benchmarks/accuracy.py [--level 0|1|2] [--task NAME] [--seed N] [--json]

The tasks beside the checkout, else the digits that npuc brings; models without a task get synthetic inputs,
standard normal, other ones for calibration than for the test (--seed makes others). onnxruntime: quantize_static,
QDQ, per channel, int8 activations and weights, symmetric, min-max, on the same calibration samples.
Errors are those of the first output.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any

import click
import numpy as np

from npuc import driver
from npuc.ir import Array
from npuc.reference import session
from npuc.storage import data
from npuc.target import Options, Quantising, names
from npuc.target import target as find
from npuc.text import as_json, table
from npuc.verification.accuracy import interval

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
MODELS = {
    "cifar20_resnet8": "tiny_resnet8_fp32",
    "doc_orientation": "pplcnet_doc_ori",
    "mnist_cnn": "mnist_cnn",
    "textangle_cls": "ppocr_cls",
}
WITHOUT_TASK = {"tiny_kws": "tiny_kws_dscnn_fp32", "tiny_vww": "tiny_vww_mbv1_fp32"}
MADE_UP = 40, 60
"""Samples for calibration and for the test."""


@dataclass(frozen=True)
class Row:
    """One way to compute a task: top-1 with its 95 % interval (if there are labels), agreement with fp32, error,
    CPU seconds."""

    task: str
    computation: str
    top1: float | None
    low: float | None
    high: float | None
    agreement: float
    sqnr_db: float | None
    cpu_seconds: float | None = None


def tasks(folder: Path, seed: int) -> Iterator[tuple[str, Path, Path, Path]]:
    """Name, model, calibration data and test data; folder: where synthetic data are written."""
    found = [(name, SHARED / "models" / f"{model}.onnx") for name, model in MODELS.items()]
    for name, model in found:
        task = SHARED / "tasks" / name
        if model.is_file() and task.is_dir():
            yield name, model, task / "calibration.npz", task / "test.npz"
    for name, model in ((name, SHARED / "models" / f"{model}.onnx") for name, model in WITHOUT_TASK.items()):
        if model.is_file():
            yield name, model, *_made_up(model, folder, seed)
    if not (SHARED / "tasks").is_dir():
        models = ROOT / "models"
        yield "digits", models / "digits.onnx", models / "digits_calibration.npz", models / "digits_test.npz"


def _made_up(model: Path, folder: Path, seed: int) -> tuple[Path, Path]:
    """Files of samples for calibration and for the test."""
    from npuc.frontend import load as import_model

    types = driver.input_types(import_model(model))
    files = folder / f"{model.stem}_calibration.npz", folder / f"{model.stem}_test.npz"
    for position, (file, count) in enumerate(zip(files, MADE_UP, strict=True)):
        data.save(file, data.synthetic(types, count, seed=2 * seed + position).inputs)
    return files


def rows(task: str, model: Path, calibration: Path, test: Path, level: str) -> Iterator[Row]:
    """fp32, onnxruntime's int8, and every target with an integer network."""
    from npuc.frontend import load as import_model

    samples = data.load([test], driver.input_types(import_model(model)))
    labels = samples.labels
    exact = _outputs(model.read_bytes(), samples)
    yield _row(task, "fp32", exact, exact, labels)
    started = process_time()
    theirs = _by_onnxruntime(model, calibration)
    seconds = process_time() - started
    yield _row(task, "onnxruntime int8", _outputs(theirs, samples), exact, labels, seconds)
    for name in names():
        machine = find(name)
        if isinstance(machine, Quantising):
            started = process_time()
            ours, _ = driver.quantise_model(model, machine, Options(level=level), {}, [calibration])
            seconds = process_time() - started
            yield _row(task, f"{name} QDQ", _outputs(ours, samples), exact, labels, seconds)
        if "int8" in machine.precisions:
            started = process_time()
            program, _ = driver.compile_model(
                model, machine, Options(precision="int8", level=level), {}, [calibration]
            )
            seconds = process_time() - started
            yield _row(task, name, _outputs(program.evidence["reference.onnx"], samples), exact, labels, seconds)


def _outputs(model: bytes, samples: data.Samples) -> Array:
    """(samples, elements) of the first output."""
    run = session(model)
    name = run.get_outputs()[0].name
    return np.stack([run.run([name], feed)[0].ravel() for feed in samples.feeds()])


def _row(
    task: str, name: str, found: Array, exact: Array, labels: Array | None, seconds: float | None = None
) -> Row:
    right = None if labels is None else found.argmax(axis=1) == labels
    noise = float(np.square(found.astype(np.float64) - exact).sum())
    signal = float(np.square(exact, dtype=np.float64).sum())
    return Row(
        task,
        name,
        *((None, None, None) if right is None else (float(right.mean()), *interval(int(right.sum()), len(right)))),
        float((found.argmax(axis=1) == exact.argmax(axis=1)).mean()),
        10 * float(np.log10(signal / noise)) if noise else None,
        seconds,
    )


def _by_onnxruntime(model: Path, calibration: Path) -> bytes:
    """The model as onnxruntime's quantize_static makes it."""
    import onnx
    from onnx import version_converter
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.calibrate import CalibrationDataReader

    from npuc.frontend import load as import_model

    samples = data.load([calibration], driver.input_types(import_model(model)))

    class Reader(CalibrationDataReader):
        """Feeds the samples one by one."""

        def __init__(self) -> None:
            self.feeds = samples.feeds()

        def get_next(self) -> Mapping[str, Any] | None:
            return next(self.feeds, None)

    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "m.onnx", Path(folder) / "q.onnx"
        proto = onnx.load(model)
        if proto.opset_import[0].version < 13:  # quantisation per axis
            proto = version_converter.convert_version(proto, 17)
        onnx.save(proto, source)
        quantize_static(
            str(source),
            str(result),
            Reader(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
        )
        return result.read_bytes()


@click.command()
@click.option("--level", type=click.Choice(("0", "1", "2")), default="1", show_default=True)
@click.option("--task", "wanted", multiple=True, help="Only these.")
@click.option("--seed", default=0, show_default=True, help="Of synthetic inputs.")
@click.option("--json", "in_json", is_flag=True)
def main(level: str, wanted: tuple[str, ...], seed: int, in_json: bool) -> None:
    """Print the table of all tasks and targets found."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = [each for each in tasks(Path(folder), seed) if not wanted or each[0] in wanted]
        found = [row for task in chosen for row in rows(*task, level)]
    if in_json:
        click.echo(as_json([asdict(row) for row in found]))
        return
    header = ("task", "computation", "top-1", "from", "to", "as fp32", "dB", "CPU s")
    click.echo(table(header, [tuple(asdict(row).values()) for row in found]))


if __name__ == "__main__":
    main()
