"""Accuracy of npuc's integer networks compared with fp32 and onnxruntime's own quantisation, task by task.

    python benchmarks/accuracy.py [--level 0|1|2] [--task NAME] [--methods MinMax,...] [--seed N] [--json]

The tasks are those beside the checkout, else npuc's own digits. Models without a task get synthetic inputs:
standard normal, different for calibration and test (--seed changes them). onnxruntime: quantize_static, QDQ, per
channel, int8 activations and weights, symmetric, on the same calibration samples, with every method of --methods.
Errors are per output, top-1 and agreement those of the first output. Where the host has parts of a network, it
computes these, and the integer networks of the other parts the rest. A network that a target refuses has no row;
stderr has the reason.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Any

import click
import numpy as np
from networks import SHARED

from npuc import driver, running
from npuc.driver import compile_model
from npuc.errors import NpucError
from npuc.ir import Array
from npuc.program import Program, as_loaded
from npuc.reference import session
from npuc.regions.artefact import is_composite
from npuc.registry import names
from npuc.samples import loading as data
from npuc.target import Options, Request
from npuc.target import target as find
from npuc.text.terminal import as_json, table
from npuc.verification.batches import integer_runner
from npuc.verification.judging.metric import interval
from npuc.verification.metrics import Difference

ROOT = Path(__file__).resolve().parents[1]
MODELS = {
    "cifar20_resnet8": "tiny_resnet8_fp32",
    "doc_orientation": "pplcnet_doc_ori",
    "mnist_cnn": "mnist_cnn",
    "textangle_cls": "ppocr_cls",
}
WITHOUT_TASK = {
    "mtcnn_pnet": "mtcnn_pnet",
    "tiny_ad": "tiny_ad_ae_fp32",
    "tiny_kws": "tiny_kws_dscnn_fp32",
    "tiny_vww": "tiny_vww_mbv1_fp32",
}
BATCH = 50
"""Samples that a program of several parts computes together."""
METHODS = ("MinMax", "Entropy", "Percentile")
MADE_UP = 40, 60
"""Samples for calibration and for the test."""


@dataclass(frozen=True)
class Row:
    """One way to compute a task: top-1 with its 95 % interval (if there are labels), agreement with fp32, error of
    each output, CPU seconds."""

    task: str
    computation: str
    top1: float | None
    low: float | None
    high: float | None
    agreement: float
    sqnr_db: tuple[float | None, ...]
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

    types = running.input_types(import_model(model))
    files = folder / f"{model.stem}_calibration.npz", folder / f"{model.stem}_test.npz"
    for position, (file, count) in enumerate(zip(files, MADE_UP, strict=True)):
        data.save(file, data.synthetic(types, count, seed=2 * seed + position).inputs)
    return files


def rows(
    task: str,
    model: Path,
    calibration: Path,
    test: Path,
    level: str,
    methods: Sequence[str],
    only: Sequence[str] = (),
) -> Iterator[Row]:
    """fp32, onnxruntime's int8, and every target with an integer network; only: those computations, if any."""
    from npuc.frontend import load as import_model

    samples = data.load([test], running.input_types(import_model(model)))
    labels = samples.labels
    exact = _outputs(model.read_bytes(), samples)
    yield _row(task, "fp32", exact, exact, labels)
    for method in methods:
        started = process_time()
        theirs = by_onnxruntime(model, calibration, method)
        seconds = process_time() - started
        yield _row(task, f"onnxruntime int8, {method}", _outputs(theirs, samples), exact, labels, seconds)
    for name in names():
        for computation, network in _of_target(name, model, calibration, level):
            if only and computation not in only:
                continue
            started = process_time()
            try:
                found = network()
            except NpucError as refusal:
                click.echo(f"{task}, {computation}: refused\n{refusal}", err=True)
                continue
            seconds = process_time() - started
            outputs = (
                _outputs(found, samples, len(exact)) if isinstance(found, bytes) else _in_parts(found, samples)
            )
            yield _row(task, computation, outputs, exact, labels, seconds)


def _of_target(
    name: str, model: Path, calibration: Path, level: str
) -> Iterator[tuple[str, Callable[[], bytes | Program]]]:
    """The target's QDQ model and the integer network that it compiles: names, and functions that make them."""
    machine, options = find(name), Options(level=level, precision="int8")
    if machine.has_integer_network:
        yield f"{name} QDQ", lambda: driver.quantise_model(Request(model, machine, options, [calibration]))[0]
    if "int8" in machine.precisions:
        yield name, lambda: _integer(compile_model(Request(model, machine, options, [calibration]))[0])


def _integer(program: Program) -> bytes | Program:
    """The integer network of a program; the program itself if the host has a part."""
    return as_loaded(program) if is_composite(program) else bytes(program.evidence["reference.onnx"])


def _in_parts(program: Program, samples: data.Samples) -> list[Array]:
    """The outputs of a program of several parts, each computed by its integer network: (samples, elements)."""
    run = integer_runner(program)
    found = [run(batch.inputs) for batch in samples.batches(BATCH)]
    names = [port.name for port in program.outputs]
    return [np.concatenate([each[name].reshape(len(each[name]), -1) for each in found]) for name in names]


def _outputs(model: bytes, samples: data.Samples, count: int | None = None) -> list[Array]:
    """The first outputs, each (samples, elements); evidence has the network's outputs before its other tensors."""
    run = session(model)
    names = [each.name for each in run.get_outputs()][:count]
    found = [[values.ravel() for values in run.run(names, feed)] for feed in samples.feeds()]
    return [np.stack(values) for values in zip(*found, strict=True)]


def _row(
    task: str,
    name: str,
    found: list[Array],
    exact: list[Array],
    labels: Array | None,
    seconds: float | None = None,
) -> Row:
    largest = found[0].argmax(axis=1)
    right = None if labels is None else largest == labels
    return Row(
        task,
        name,
        *((None, None, None) if right is None else (float(right.mean()), *interval(int(right.sum()), len(right)))),
        float((largest == exact[0].argmax(axis=1)).mean()),
        tuple(decibels(*pair) for pair in zip(found, exact, strict=True)),
        seconds,
    )


def decibels(found: Array, exact: Array) -> float | None:
    """The signal-to-noise ratio in dB; None for equal values."""
    apart = Difference()
    apart.add(exact, found)
    return apart.sqnr_db


def by_onnxruntime(model: Path, calibration: Path, method: str) -> bytes:
    """The model quantised by onnxruntime's quantize_static with a CalibrationMethod."""
    import onnx
    from onnx import version_converter
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.calibrate import CalibrationDataReader

    from npuc.frontend import load as import_model

    samples = data.load([calibration], running.input_types(import_model(model)))

    class Reader(CalibrationDataReader):
        """Feeds the samples one by one."""

        def __init__(self) -> None:
            self.feeds = samples.feeds()

        def get_next(self) -> dict[str, Any]:
            return dict(next(self.feeds, {}))

    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder) / "m.onnx", Path(folder) / "q.onnx"
        proto = onnx.load(model)
        if proto.opset_import[0].version < 13:  # quantisation per axis
            proto = version_converter.convert_version(proto, 17)
        onnx.save(proto, source)
        with redirect_stdout(sys.stderr):  # it prints its progress
            quantize_static(
                str(source),
                str(result),
                Reader(),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod[method],
                extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
            )
        return result.read_bytes()


def _cells(row: Row) -> tuple[Any, ...]:
    """The columns of the table."""
    errors = ", ".join("exact" if each is None else f"{each:.1f}" for each in row.sqnr_db)
    return tuple((asdict(row) | {"sqnr_db": errors}).values())


@click.command()
@click.option("--level", type=click.Choice(("0", "1", "2")), default="1", show_default=True)
@click.option("--task", "wanted", multiple=True, help="Only these.")
@click.option("--methods", default="MinMax", show_default=True, help=f"Of onnxruntime: {', '.join(METHODS)}.")
@click.option("--seed", default=0, show_default=True, help="Of synthetic inputs.")
@click.option("--json", "in_json", is_flag=True)
def main(level: str, wanted: tuple[str, ...], methods: str, seed: int, in_json: bool) -> None:
    """Print the table of all tasks and targets found."""
    with tempfile.TemporaryDirectory() as folder:
        chosen = [each for each in tasks(Path(folder), seed) if not wanted or each[0] in wanted]
        found = [row for task in chosen for row in rows(*task, level, methods.split(","))]
    if in_json:
        click.echo(as_json([asdict(row) for row in found]))
        return
    header = ("task", "computation", "top-1", "from", "to", "as fp32", "dB", "CPU s")
    click.echo(table(header, [_cells(row) for row in found]))


if __name__ == "__main__":
    main()
