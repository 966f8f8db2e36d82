"""Detectors: accuracy of boxes and of rarely large scores in integers, compared with onnxruntime's quantisation.

    python benchmarks/detectors.py [--target T ..] [--level 0|1|2] [--bias 4 ..] [--seed N ..] [--mixed]

The detector is npuc.models.detector; 64 images for calibration, 200 for the test. The host computes the Sigmoid.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import click
import numpy as np
import onnx
from accuracy import by_onnxruntime

from npuc import api
from npuc.ir import Array
from npuc.models import detector
from npuc.models.detector import SIZE, Scenes, scenes
from npuc.reference import session
from npuc.registry import TARGETS
from npuc.samples import loading as data
from npuc.target import Options
from npuc.text.terminal import as_json, table
from npuc.verification.judging.boxes import Decoding
from npuc.verification.judging.detections import Detections
from npuc.verification.judging.metric import FP32
from npuc.verification.metrics import Difference

CALIBRATION, TEST = 64, 200
MEASURED = ("easynpu", "nvdla-small", "nvdla-full", "bm1684")
FLAT = detector.CELLS**2
METRIC = Detections(
    Decoding("columns", "y", "y", 4 + detector.CLASSES, FLAT, "centre", detector.SURE), (SIZE, SIZE)
)


@dataclass(frozen=True)
class Row:
    """Mean average precision against the labels; signal-to-noise ratios in dB; the error of boxes in pixels.

    recall: the share of fp32's detections that are found, after suppression, with an overlap of a half or more.
    cells: the share of cells with scores of SURE or more that are found; precision: that of found ones that are
    fp32's.
    """

    computation: str
    bias: float
    seed: int
    map50: float
    boxes_db: float
    scores_db: float
    recall: float
    cells: float
    precision: float
    box_error_px: float
    cpu_seconds: float


def rows(folder: Path, bias: float, seed: int, targets: tuple[str, ...], options: Options) -> Iterator[Row]:
    """The results of fp32, of onnxruntime's int8 and of each target's."""
    model, calibration = folder / "m.onnx", folder / "calibration.npz"
    onnx.save(detector.detector(bias, seed), model)
    data.save(calibration, {"input": scenes(CALIBRATION, (seed, 1)).pixels[:, None]})
    test = scenes(TEST, (seed, 2))
    exact = _outputs(model.read_bytes(), test.pixels)
    made: dict[str, Callable[[], Callable[[Array], Array]]] = {FP32: lambda: partial(_outputs, model.read_bytes())}
    made["onnxruntime"] = lambda: partial(_outputs, by_onnxruntime(model, calibration, "MinMax"))
    made |= {name: lambda name=name: _compile(name, model, calibration, options) for name in targets}
    for name, make in made.items():
        started = process_time()
        run = make()
        seconds = process_time() - started
        yield _row(name, bias, seed, test, exact, run(test.pixels), seconds)


def _compile(name: str, model: Path, calibration: Path, options: Options) -> Callable[[Array], Array]:
    """A target's program."""
    program = api.compile(model, name, calibration=calibration, options=options)

    def run(pixels: Array) -> Array:
        (found,) = program.run({"input": pixels[:, None]}).values()
        return found.reshape(len(pixels), -1, FLAT)

    return run


def _outputs(model: bytes, samples: Array) -> Array:
    """(samples, 4 + CLASSES, cells), under onnxruntime."""
    run = session(model)
    return np.stack([run.run(None, {"input": each[None]})[0].reshape(-1, FLAT) for each in samples])


def _row(name: str, bias: float, seed: int, test: Scenes, exact: Array, found: Array, seconds: float) -> Row:
    boxes, scores = Difference(), Difference()
    boxes.add(exact[:, :4], found[:, :4])
    scores.add(exact[:, 4:], found[:, 4:])
    true, seen = exact[:, 4:] >= detector.SURE, found[:, 4:] >= detector.SURE
    both = int((true & seen).sum())
    report = METRIC.report({FP32: _decode(exact), "int8": _decode(found)}, _labels(test))["int8"]
    return Row(
        name,
        bias,
        seed,
        report["map50"],
        boxes.sqnr_db or np.inf,
        scores.sqnr_db or np.inf,
        report["recall"],
        both / max(int(true.sum()), 1),
        both / max(int(seen.sum()), 1),
        report["box_error_px"],
        seconds,
    )


def _decode(outputs: Array) -> list[Any]:
    """The detections of every sample: boxes from centre x, y and size."""
    x, y = np.tile(detector.CENTRES, detector.CELLS), np.repeat(detector.CENTRES, detector.CELLS)
    left, top, right, bottom = np.moveaxis(outputs[:, :4], 1, 0) * detector.STRIDE
    places = [x + (right - left) / 2, y + (bottom - top) / 2, left + right, top + bottom]
    columns = np.concatenate([np.stack(places, axis=1), outputs[:, 4:]], axis=1)
    return [METRIC.digest({"y": each[None]}, {}, None) for each in columns]


def _labels(test: Scenes) -> Array:
    """(samples, boxes, 5), filled up with class -1."""
    most = max(map(len, test.boxes))
    return np.stack([np.pad(each, ((0, most - len(each)), (0, 0)), constant_values=-1) for each in test.boxes])


@click.command()
@click.option("--target", "targets", multiple=True, type=click.Choice(tuple(TARGETS)), default=MEASURED)
@click.option("--level", type=click.Choice(("0", "1", "2")), default="1", show_default=True)
@click.option("--bias", "biases", multiple=True, type=float, default=(4, 6, 9), help="Below 0.")
@click.option("--seed", "seeds", multiple=True, type=int, default=(0, 1))
@click.option("--mixed", is_flag=True, help="Let npuc move layers to the host.")
@click.option("--json", "in_json", is_flag=True)
def main(
    targets: tuple[str, ...],
    level: str,
    biases: tuple[float, ...],
    seeds: tuple[int, ...],
    mixed: bool,
    in_json: bool,
) -> None:
    """Print the table."""
    options = Options(level=level, precision="int8", mixed=mixed)
    found: list[Row] = []
    for seed in seeds:
        for bias in biases:
            with tempfile.TemporaryDirectory() as folder:
                found += rows(Path(folder), -bias, seed, targets, options)
    if in_json:
        click.echo(as_json([asdict(row) for row in found]))
        return
    header = (
        "computation",
        "bias",
        "seed",
        "mAP",
        "boxes dB",
        "scores dB",
        "recall",
        "cells",
        "precision",
        "px",
        "CPU s",
    )
    click.echo(table(header, [_cells(row) for row in found]))


def _cells(row: Row) -> tuple[Any, ...]:
    """The columns of the table."""
    return tuple(f"{each:.3g}" if isinstance(each, float) else each for each in astuple(row))


if __name__ == "__main__":
    main()
