"""Detectors: accuracy of boxes and of rarely large scores in integers, compared with onnxruntime's quantisation.

    python benchmarks/detectors.py [--model M ..] [--target T ..] [--level 0|1|2] [--seed N ..] [--mixed]

The detectors are fitted to synthetic scenes: npuc.models.detector with three biases of its scores, whose Sigmoid
the host computes, and those of npuc.models.fitted (YOLOv8-like, SSD-like, of text). 64 images for
calibration, 200 for the test. "8 bits alone": fp32 that rounds activations, and nothing else.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

import click
import numpy as np
import onnx
from onnx import helper, numpy_helper
from quantisers import quantised

from npuc import api
from npuc.ir import Array
from npuc.models import detector, fitted
from npuc.models.detector import CLASSES, SURE, Scenes
from npuc.reference import session, with_outputs
from npuc.registry import TARGETS
from npuc.running import run_batches
from npuc.samples import loading as data
from npuc.target import Options
from npuc.text.terminal import as_json, table
from npuc.verification.batches import integer_runner
from npuc.verification.judging.boxes import Decoding
from npuc.verification.judging.detections import Detections
from npuc.verification.judging.metric import FP32
from npuc.verification.metrics import Difference

CALIBRATION, TEST = 64, 200
MEASURED = ("easynpu", "nvdla-small", "nvdla-full", "bm1684")


@dataclass(frozen=True)
class Yardstick:
    """A fitted detector, its scenes, and its outputs as boxes and scores.

    decode: (samples, 4, N) centres and sizes in pixels, (samples, classes, N); of text scores of pixels alone,
    (samples, 4, 0) and (samples, 1, N).
    """

    build: Callable[[int], onnx.ModelProto]
    scenes: Callable[[int, tuple[int, int]], Scenes]
    size: int
    decode: Callable[[list[Array]], tuple[Array, Array]]


def _from_cells(outputs: list[Array]) -> tuple[Array, Array]:
    x, y = np.tile(detector.CENTRES, detector.CELLS), np.repeat(detector.CENTRES, detector.CELLS)
    found = outputs[0].reshape(len(outputs[0]), -1, detector.CELLS**2)
    left, top, right, bottom = np.moveaxis(found[:, :4], 1, 0) * detector.STRIDE
    places = [x + (right - left) / 2, y + (bottom - top) / 2, left + right, top + bottom]
    return np.stack(places, axis=1), found[:, 4:]


def _from_columns(outputs: list[Array]) -> tuple[Array, Array]:
    found = outputs[0].reshape(len(outputs[0]), 4 + CLASSES, -1)
    return found[:, :4], found[:, 4:]


def _from_pair(outputs: list[Array]) -> tuple[Array, Array]:
    scores, corners = (np.moveaxis(each.reshape(len(each), -1, each.shape[-1]), 2, 1) for each in outputs)
    low, high = np.split(corners * fitted.SIZE, 2, axis=1)
    return np.concatenate([(low + high) / 2, high - low], axis=1), scores[:, 1:]


def _from_pixels(outputs: list[Array]) -> tuple[Array, Array]:
    scores = outputs[0].reshape(len(outputs[0]), 1, -1)
    return np.empty((len(scores), 4, 0), np.float32), scores


YARDSTICKS = {
    **{
        f"cells {bias}": Yardstick(partial(detector.detector, -bias), detector.scenes, detector.SIZE, _from_cells)
        for bias in (4.0, 6.0, 9.0)
    },
    "yolo": Yardstick(fitted.yolo, fitted.images, fitted.SIZE, _from_columns),
    "ssd": Yardstick(fitted.ssd, fitted.images, fitted.SIZE, _from_pair),
    "text": Yardstick(fitted.text, fitted.text_images, fitted.SIZE, _from_pixels),
}


@dataclass(frozen=True)
class Row:
    """Mean average precision against the labels; signal-to-noise ratios in dB; the error of boxes in pixels.

    recall: the share of fp32's detections that are found, after suppression, with an overlap of a half or more.
    cells: the share of cells with scores of SURE or more that are found; precision: that of found ones that are
    fp32's.
    """

    detector: str
    computation: str
    seed: int
    map50: float | None
    boxes_db: float | None
    scores_db: float
    recall: float | None
    cells: float
    precision: float
    box_error_px: float | None
    cpu_seconds: float


def rows(folder: Path, name: str, seed: int, targets: tuple[str, ...], options: Options) -> Iterator[Row]:
    """The results of fp32, of onnxruntime's int8 and of each target's."""
    model, calibration, yardstick = folder / "m.onnx", folder / "calibration.npz", YARDSTICKS[name]
    onnx.save(yardstick.build(seed), model)
    data.save(calibration, {"input": yardstick.scenes(CALIBRATION, (seed, 1)).pixels[:, None]})
    test = yardstick.scenes(TEST, (seed, 2))
    exact = yardstick.decode(_outputs(model.read_bytes(), test.pixels))
    made: dict[str, Callable[[], Callable[[Array], list[Array]]]] = {
        FP32: lambda: partial(_outputs, model.read_bytes())
    }
    made["onnxruntime"] = lambda: partial(
        _outputs, quantised("onnxruntime", ("MinMax", "symmetric"), model, calibration, None, folder)[0]
    )
    made["8 bits alone"] = lambda: _rounded(model, calibration)
    made |= {each: lambda each=each: _compile(each, model, calibration, options) for each in targets}
    for each, make in made.items():
        started = process_time()
        run = make()
        seconds = process_time() - started
        yield _row((name, each, seed), yardstick, test, exact, yardstick.decode(run(test.pixels)), seconds)


def _compile(name: str, model: Path, calibration: Path, options: Options) -> Callable[[Array], list[Array]]:
    """The integer network of a target's program, with which its words were proved to agree in every bit."""
    program = api.compile(model, name, calibration=calibration, options=options)
    runner = integer_runner(program.program)
    return lambda pixels: list(run_batches(runner, program.samples({"input": pixels[:, None]})).values())


BITS, SHOWN, SHARES = 8, 24, np.geomspace(0.3, 1, 10)
"""Of `_rounded`: bits, samples, and the shares of the range that are tried."""


def _rounded(model: Path, calibration: Path) -> Callable[[Array], list[Array]]:
    """fp32 in which nothing but what convolutions read and give is rounded to 8 bits, each tensor at its best."""
    network = onnx.load(model)
    nodes = [*network.graph.node]
    names = {each for node in nodes if node.op_type.startswith("Conv") for each in (node.input[0], *node.output)}
    shown = with_outputs(onnx.load(model), sorted(names - {"input"})).SerializeToString()
    with np.load(calibration) as file:
        values = dict(zip(sorted(names - {"input"}), _outputs(shown, file["input"][:SHOWN, 0]), strict=True))
    del network.graph.node[:]
    for node in nodes:
        for at, name in enumerate(node.input):
            node.input[at] = f"{name}/rounded" if name in values else name
        network.graph.node.append(node)
        for name in values.keys() & {*node.output}:
            numbers = zip(("scale", "zero"), _best_steps(values[name].ravel()), strict=True)
            network.graph.initializer.extend(
                numpy_helper.from_array(np.asarray(v), f"{name}/{key}") for key, v in numbers
            )
            ends = [f"{name}/scale", f"{name}/zero"]
            network.graph.node.extend(
                helper.make_node(op, [of, *ends], [made])
                for op, of, made in (
                    ("QuantizeLinear", name, f"{name}/integer"),
                    ("DequantizeLinear", f"{name}/integer", f"{name}/rounded"),
                )
            )
    return partial(_outputs, network.SerializeToString())


def _best_steps(values: Array) -> tuple[np.float32, np.uint8]:
    """Scale and zero point with the least squared error."""
    values = values[:: max(values.size // 50_000, 1)]
    least, largest = min(values.min(), 0), max(values.max(), 0)
    found: list[tuple[float, np.float32, np.uint8]] = []
    for low, high in product({*(least * SHARES)}, largest * SHARES):
        scale = np.float32((high - low) / (2**BITS - 1))
        zero = np.rint(-low / scale)
        error = (np.clip(np.rint(values / scale) + zero, 0, 2**BITS - 1) - zero) * scale - values
        found.append((float(np.square(error).mean()), scale, np.uint8(zero)))
    return min(found)[1:]


def _outputs(model: bytes, samples: Array) -> list[Array]:
    """The outputs under onnxruntime, each with a sample axis."""
    run = session(model)
    found = [run.run(None, {"input": each[None]}) for each in samples]
    return [np.concatenate(column) for column in zip(*found, strict=True)]


def _row(
    what: tuple[str, str, int],
    yardstick: Yardstick,
    test: Scenes,
    exact: tuple[Array, Array],
    found: tuple[Array, Array],
    seconds: float,
) -> Row:
    true, seen = exact[1] >= SURE, found[1] >= SURE
    both = int((true & seen).sum())
    report = _judged(yardstick, test, exact, found) if exact[0].size else {}
    return Row(
        *what,
        report.get("map50"),
        _decibels(exact[0], found[0]) if exact[0].size else None,
        _decibels(exact[1], found[1]),
        report.get("recall"),
        both / max(int(true.sum()), 1),
        both / max(int(seen.sum()), 1),
        report.get("box_error_px"),
        seconds,
    )


def _decibels(exact: Array, found: Array) -> float:
    difference = Difference()
    difference.add(exact, found)
    return difference.sqnr_db or np.inf


def _judged(
    yardstick: Yardstick, test: Scenes, exact: tuple[Array, Array], found: tuple[Array, Array]
) -> Mapping[str, Any]:
    """What is found of the labels and of fp32's detections."""
    decoding = Decoding("columns", "y", "y", 4 + CLASSES, exact[0].shape[2], "centre", SURE)
    metric = Detections(decoding, (yardstick.size, yardstick.size))
    digests = {
        name: [metric.digest({"y": each[None]}, {}, None) for each in np.concatenate(values, axis=1)]
        for name, values in {FP32: exact, "int8": found}.items()
    }
    return metric.report(digests, _labels(test))["int8"]


def _labels(test: Scenes) -> Array:
    """(samples, boxes, 5), filled up with class -1."""
    most = max(map(len, test.boxes))
    return np.stack([np.pad(each, ((0, most - len(each)), (0, 0)), constant_values=-1) for each in test.boxes])


@click.command()
@click.option("--target", "targets", multiple=True, type=click.Choice(tuple(TARGETS)), default=MEASURED)
@click.option("--level", type=click.Choice(("0", "1", "2")), default="1", show_default=True)
@click.option("--model", "models", multiple=True, type=click.Choice(tuple(YARDSTICKS)), default=tuple(YARDSTICKS))
@click.option("--seed", "seeds", multiple=True, type=int, default=(0, 1))
@click.option("--mixed", is_flag=True, help="Let npuc move layers to the host.")
@click.option("--json", "in_json", is_flag=True)
def main(
    targets: tuple[str, ...],
    level: str,
    models: tuple[str, ...],
    seeds: tuple[int, ...],
    mixed: bool,
    in_json: bool,
) -> None:
    """Print the table."""
    options = Options(level=level, precision="int8", mixed=mixed)
    found: list[Row] = []
    for seed in seeds:
        for name in models:
            with tempfile.TemporaryDirectory() as folder:
                found += rows(Path(folder), name, seed, targets, options)
    if in_json:
        click.echo(as_json([asdict(row) for row in found]))
        return
    header = (
        "detector",
        "computation",
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
