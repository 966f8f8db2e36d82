"""Detectors: accuracy of boxes and of rarely large scores in integers, compared with onnxruntime's quantisation.

    python benchmarks/detectors.py [--target T ..] [--level 0|1|2] [--bias 4 ..] [--seed N ..] [--trunk relu|..]

A trunk with random weights on images of random blocks, a head for boxes and one for scores with a Sigmoid. As in
a trained detector, most logits are near the bias of -4 to -9, and few exceed 0: the head's weights are scaled
so that 3 of 1,000 exceed 1.5. A detection is a position whose fp32 score is at least .25. There are 40 images for
calibration and 60 for the test.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from time import process_time
from typing import Any

import click
import numpy as np
import onnx
from accuracy import by_onnxruntime
from onnx import numpy_helper

from npuc import driver
from npuc.ir import Array
from npuc.models.builder import NetworkBuilder
from npuc.reference import session
from npuc.storage import data
from npuc.target import Options
from npuc.target import target as find
from npuc.text import table
from npuc.verification.metrics import Difference

SIZE = 96
SURE = 0.25
RARE, HIGH = 0.997, 1.5
"""This share of the logits lies below this value."""


@dataclass(frozen=True)
class Row:
    """Signal-to-noise ratios of boxes and scores in dB; the share of fp32's detections that are found, and the
    share of found detections that are fp32's."""

    computation: str
    bias: float
    seed: int
    boxes_db: float
    scores_db: float
    recall: float
    precision: float
    detections: int
    cpu_seconds: float


def images(count: int, seed: Sequence[int]) -> Array:
    """(count, 1, 3, SIZE, SIZE): blocks of random colours over a background, with noise."""
    random = np.random.default_rng(seed)
    found = random.normal(0, 0.05, (count, 1, 3, SIZE, SIZE))
    for image in found[:, 0]:
        image += random.uniform(-0.5, 0.5, (3, 1, 1))
        for _ in range(random.integers(2, 9)):
            height, width = random.integers(6, 40, 2)
            row, column = random.integers(0, SIZE - 6, 2)
            block = image[:, row : row + height, column : column + width]
            block[:] = random.uniform(-1, 1, (3, 1, 1)) + random.normal(0, 0.05, block.shape)
    return found.astype(np.float32)


def _relu(net: NetworkBuilder, x: str) -> str:
    for channels, stride in ((16, 2), (32, 2), (64, 2), (64, 1)):
        x = net.relu(net.conv(x, channels, 3, stride=stride))
    return x


def _swish(net: NetworkBuilder, x: str) -> str:
    for channels, stride in ((16, 2), (32, 2), (64, 2), (64, 1)):
        x = net.swish(net.conv(x, channels, 3, stride=stride))
    return x


def _depthwise(net: NetworkBuilder, x: str) -> str:
    x = net.relu(net.conv(x, 16, 3, stride=2))
    for channels, stride in ((32, 2), (64, 2), (64, 1), (64, 1)):
        x = net.relu(net.batch_norm(net.depthwise(x, 3, stride=stride)))
        x = net.relu(net.batch_norm(net.conv(x, channels, 1, bias=False)))
    return x


TRUNKS: Mapping[str, Callable[[NetworkBuilder, str], str]] = {
    "relu": _relu,
    "swish": _swish,
    "depthwise": _depthwise,
}


def detector(trunk: str, bias: float, seed: int) -> onnx.ModelProto:
    """A detector from 1x3xSIZExSIZE to a box (4) and a score for every position."""
    net = NetworkBuilder("detector", seed)
    x = TRUNKS[trunk](net, net.input((1, 3, SIZE, SIZE)))
    boxes, logits = net.conv(x, 4, 1), net.conv(x, 1, 1)
    score = net.node("Sigmoid", [logits], net.shapes[logits])
    model = net.finish(net.concat(boxes, score))
    head = next(node for node in model.graph.node if node.output[0] == logits)
    _scale_head(model, head, bias, images(40, seed=[seed, 2]))
    return model


def _scale_head(model: onnx.ModelProto, head: onnx.NodeProto, bias: float, seen: Array) -> None:
    """Sets the median of the logits to the bias, and the RARE quantile of them to HIGH."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.append(onnx.ValueInfoProto(name=head.output[0]))
    run = session(shown)
    logits = np.concatenate([run.run([head.output[0]], {"input": each})[0].ravel() for each in seen])
    middle = np.median(logits)
    gain = (HIGH - bias) / (np.quantile(logits, RARE) - middle)
    for tensor in model.graph.initializer:
        if tensor.name in head.input:
            value = numpy_helper.to_array(tensor) * gain
            value = value + (bias - middle * gain) if tensor.name == head.input[2] else value
            tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), tensor.name))


def rows(folder: Path, trunk: str, bias: float, seed: int, targets: tuple[str, ...], level: str) -> Iterator[Row]:
    """The results of onnxruntime's int8 and of each target's."""
    model, calibration = folder / "m.onnx", folder / "calibration.npz"
    onnx.save(detector(trunk, bias, seed), model)
    data.save(calibration, {"input": images(40, seed=[seed, 0])})
    test = images(60, seed=[seed, 1])
    exact = _outputs(model.read_bytes(), test)
    made: dict[str, Callable[[], bytes]] = {"onnxruntime": lambda: by_onnxruntime(model, calibration, "MinMax")}
    for name in targets:
        made[name] = lambda name=name: driver.compile_model(
            model, find(name), Options(level=level, precision="int8"), {}, [calibration]
        )[0].evidence["reference.onnx"]
    for name, make in made.items():
        started = process_time()
        integers = make()
        seconds = process_time() - started
        yield _row(name, bias, seed, exact, _outputs(integers, test), seconds)


def _outputs(model: bytes, samples: Array) -> Array:
    """(samples, 5, places)."""
    run = session(model)
    name = run.get_outputs()[0].name
    return np.stack([run.run([name], {"input": each})[0].reshape(5, -1) for each in samples])


def _row(name: str, bias: float, seed: int, exact: Array, found: Array, seconds: float) -> Row:
    boxes, scores = Difference(), Difference()
    boxes.add(exact[:, :4], found[:, :4])
    scores.add(exact[:, 4], found[:, 4])
    true, seen = exact[:, 4] >= SURE, found[:, 4] >= SURE
    both = int((true & seen).sum())
    return Row(
        name,
        bias,
        seed,
        boxes.sqnr_db or np.inf,
        scores.sqnr_db or np.inf,
        both / max(int(true.sum()), 1),
        both / max(int(seen.sum()), 1),
        int(true.sum()),
        seconds,
    )


@click.command()
@click.option("--target", "targets", multiple=True, default=("easynpu", "nvdla-small", "nvdla-full"))
@click.option("--level", type=click.Choice(("0", "1", "2")), default="1", show_default=True)
@click.option("--bias", "biases", multiple=True, type=float, default=(4, 6, 9), help="Below 0.")
@click.option("--seed", "seeds", multiple=True, type=int, default=(0, 1))
@click.option("--trunk", type=click.Choice(tuple(TRUNKS)), default="relu", show_default=True)
def main(
    targets: tuple[str, ...], level: str, biases: tuple[float, ...], seeds: tuple[int, ...], trunk: str
) -> None:
    """Print the table."""
    found: list[Row] = []
    for seed in seeds:
        for bias in biases:
            with tempfile.TemporaryDirectory() as folder:
                found += rows(Path(folder), trunk, -bias, seed, targets, level)
    header = ("computation", "bias", "seed", "boxes dB", "scores dB", "recall", "precision", "detections", "CPU s")
    click.echo(table(header, [_cells(row) for row in found]))


def _cells(row: Row) -> tuple[Any, ...]:
    """The columns of the table."""
    return tuple(f"{each:.3g}" if isinstance(each, float) else each for each in astuple(row))


if __name__ == "__main__":
    main()
