"""Accuracy of npuc's integer networks compared with fp32 and with other quantisers, task by task, in one run.

    python benchmarks/accuracy.py [--level 0|1|2]... [--task NAME]... [--target NAME]... [--peer NAME]...
        [--python NAME=PYTHON]... [--drawing FILE.svg] [--seed N] [--json]

The tasks are those beside the checkout, else npuc's own digits. Models without a task get synthetic inputs:
standard normal, different for calibration and test (--seed changes them). onnxruntime: quantize_static, QDQ, per
channel, int8 weights, on the same calibration samples; --peer adds its other settings, and other quantisers. Each
is a process of its own, npuc too, on one thread; CPU seconds include imports.
Errors are per output, of logits where a model ends in Softmax; top-1 and agreement those of the first output.
Where the host has parts of a network, it computes these, and the integer networks of the other parts the rest. A
network that a target refuses has no row; stderr has the reason.
"""

from __future__ import annotations

import html
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import click
import numpy as np
import onnx
from networks import SHARED
from quantisers import PROGRAMS, SETTINGS, Refused, measure, quantised

from npuc import api, running
from npuc.errors import NpucError
from npuc.ir import Array
from npuc.program import Program
from npuc.reference import session
from npuc.registry import names
from npuc.samples import loading as data
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
YARDSTICK = "onnxruntime MinMax symmetric"
USUAL: Mapping[str, Sequence[tuple[str, ...]]] = {"onnxruntime": [("MinMax", "symmetric")]}
EXACT = 100.0
"""dB that stand for equal values."""
BATCH = 50
"""Samples that a program of several parts computes together."""
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
            yield name, _without_softmax(model, folder), task / "calibration.npz", task / "test.npz"
    for name, model in ((name, SHARED / "models" / f"{model}.onnx") for name, model in WITHOUT_TASK.items()):
        if model.is_file():
            yield name, _without_softmax(model, folder), *_made_up(model, folder, seed)
    if not (SHARED / "tasks").is_dir():
        models = ROOT / "models"
        yield "digits", models / "digits.onnx", models / "digits_calibration.npz", models / "digits_test.npz"


def _without_softmax(model: Path, folder: Path) -> Path:
    """The model up to its logits: a few samples between two classes decide over the dB of probabilities."""
    proto = onnx.load(model)
    given = {each.output[0]: each for each in proto.graph.node if each.op_type == "Softmax"}
    for output in (each for each in proto.graph.output if each.name in given):
        softmax = given[output.name]
        output.name = softmax.input[0]
        proto.graph.node.remove(softmax)
    onnx.save(proto, folder / model.name)
    return folder / model.name


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
    levels: Sequence[str],
    settings: Mapping[str, Sequence[tuple[str, ...]]],
    only: Sequence[str] = (),
    pythons: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Row]:
    """fp32, the quantisers with their settings, and every target with int8; only: of npuc's, if any."""
    from npuc.frontend import load as import_model

    samples = data.load([test], running.input_types(import_model(model)))
    exact = _outputs(model.read_bytes(), samples)
    yield _row(task, "fp32", exact, exact, samples.labels)
    made: dict[str, Callable[[Path], tuple[bytes | Program, float]]] = {
        " ".join((peer, *each)): partial(quantised, peer, each, model, calibration, pythons.get(peer))
        for peer, asked in settings.items()
        for each in asked
    }
    for each, level in product(_of_targets(), levels):
        if each in only or not only:
            title = f"{each} -O{level}" if len(levels) > 1 else each
            made[title] = partial(_by_npuc, each, level, model, calibration)
    for computation, make in made.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                network, seconds = make(Path(folder))
                outputs = (
                    _outputs(network, samples, len(exact))
                    if isinstance(network, bytes)
                    else _by_integers(network, samples)
                )
            except (Refused, NpucError) as refusal:
                click.echo(f"{task}, {computation}: {refusal}", err=True)
                continue
        yield _row(task, computation, outputs, exact, samples.labels, seconds)


def _of_targets() -> Iterator[str]:
    """The targets with int8, and QDQ after the names of those whose integer networks other runtimes can open."""
    for name in names():
        yield from [f"{name} QDQ"] * find(name).has_integer_network
        yield from [name] * ("int8" in find(name).precisions)


def _by_npuc(
    computation: str, level: str, model: Path, calibration: Path, folder: Path
) -> tuple[bytes | Program, float]:
    """The QDQ model, or the integer network that a target compiles, by a process of npuc; its CPU seconds."""
    target, *in_qdq = computation.split()
    output = folder / ("q.onnx" if in_qdq else "q.npu")
    given = ["--target", target, f"-O{level}", "--calibration", calibration, "-o", output]
    command = ["quantize", model, *given] if in_qdq else ["compile", model, *given, "--precision", "int8"]
    seconds = measure([sys.executable, "-m", "npuc", *command], folder)
    return output.read_bytes() if in_qdq else api.load(output).program, seconds


def _by_integers(program: Program, samples: data.Samples) -> list[Array]:
    """The outputs of a program's integer network, host regions included: (samples, elements)."""
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


def _cells(row: Row) -> tuple[Any, ...]:
    """The columns of the table."""
    errors = ", ".join("exact" if each is None else f"{each:.1f}" for each in row.sqnr_db)
    return tuple((asdict(row) | {"sqnr_db": errors}).values())


def costs(found: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """For each computation that has every task: its CPU seconds over the yardstick's, and dB above the yardstick.

    Both are means over tasks; dB of the worst output, at most EXACT.
    """
    tasks_of: dict[str, dict[str, Row]] = {}
    for row in found:
        if row.cpu_seconds is not None:
            tasks_of.setdefault(row.computation, {})[row.task] = row
    first = tasks_of[YARDSTICK]

    def worst(row: Row) -> float:
        return min(EXACT if each is None else min(each, EXACT) for each in row.sqnr_db)

    return {
        name: (
            fmean((row.cpu_seconds or 0) / (first[task].cpu_seconds or 1) for task, row in rows.items()),
            fmean(worst(row) - worst(first[task]) for task, row in rows.items()),
        )
        for name, rows in tasks_of.items()
        if rows.keys() == first.keys()
    }


def draw(points: Mapping[str, tuple[float, float]]) -> str:
    """A picture (SVG) of `costs`, with the front: those that nothing quicker beats."""
    width, height, edge = 720, 420, 46
    x, y = (np.array(each) for each in zip(*points.values(), strict=True))
    left, right, low, high = np.log2(x.min()) - 0.2, np.log2(x.max()) + 1.2, y.min() - 1, y.max() + 1

    def place(at: tuple[float, float]) -> tuple[float, float]:
        across = (np.log2(at[0]) - left) / (right - left)
        down = 1 - (at[1] - low) / (high - low)
        return round(edge + across * (width - 2 * edge), 1), round(edge + down * (height - 2 * edge), 1)

    best, front = -np.inf, list[str]()
    for at in sorted(points.values()):
        if at[1] > best:
            best = at[1]
            front.append("{},{}".format(*place(at)))
    marks = [f'<polyline points="{" ".join(front)}" fill="none" stroke="#888" stroke-dasharray="4 3"/>']
    label = -np.inf
    for name, at in sorted(points.items(), key=lambda each: place(each[1])[1]):
        (across, down), colour = place(at), "#c33" if name.split()[0] in PROGRAMS else "#06c"
        label = max(down + 16, label + 13)  # below its mark, and the label before
        marks += [
            f'<circle cx="{across}" cy="{down}" r="4" fill="{colour}"/>',
            f'<text x="{across - 4:g}" y="{label:g}">{html.escape(name)}</text>',
        ]
    for power in range(int(np.ceil(left)), int(right) + 1):
        marks.append(f'<text x="{place((2.0**power, low))[0]}" y="{height - 24}">{2.0**power:g}</text>')
    for step in range(int(np.ceil(low / 5)) * 5, int(high) + 1, 5):
        marks.append(f'<text x="8" y="{place((1.0, step))[1]}">{step:+d} dB</text>')
    marks.append(f'<text x="{width // 2 - 90}" y="{height - 6}">CPU seconds over those of {YARDSTICK}</text>')
    size = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *marks, "</svg>", ""])


def _pythons(_context: click.Context, _option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    """The Pythons of --python, by quantiser. Raises BadParameter."""
    pairs = [each.split("=", 1) for each in given]
    if any(len(each) < 2 or each[0] not in PROGRAMS for each in pairs):
        raise click.BadParameter(f"give QUANTISER=PYTHON, with one of {', '.join(PROGRAMS)}")
    return dict(pairs)


@click.command()
@click.option("--level", "levels", type=click.Choice(("0", "1", "2")), multiple=True, default=("1",))
@click.option("--task", "wanted", multiple=True, help="Only these.")
@click.option("--target", "targets", multiple=True, help="Only these of npuc's computations.")
@click.option("--peer", "peers", type=click.Choice((*PROGRAMS,)), multiple=True, help="With all its settings.")
@click.option("--python", "pythons", multiple=True, callback=_pythons, help="QUANTISER=PYTHON, its own.")
@click.option("--seed", default=0, show_default=True, help="Of synthetic inputs.")
@click.option("--drawing", type=click.Path(path_type=Path), help="Write dB over CPU seconds (.svg).")
@click.option("--json", "in_json", is_flag=True)
def main(
    levels: tuple[str, ...],
    wanted: tuple[str, ...],
    targets: tuple[str, ...],
    peers: tuple[str, ...],
    pythons: Mapping[str, str],
    seed: int,
    drawing: Path | None,
    in_json: bool,
) -> None:
    """Print the table of all tasks and targets found."""
    settings = {**USUAL, **{each: SETTINGS[each] for each in peers}}
    with tempfile.TemporaryDirectory() as folder:
        chosen = [each for each in tasks(Path(folder), seed) if not wanted or each[0] in wanted]
        found = [row for task in chosen for row in rows(*task, levels, settings, targets, pythons)]
    if drawing is not None:
        drawing.write_text(draw(costs(found)), "utf-8")
    if in_json:
        click.echo(as_json([asdict(row) for row in found]))
        return
    header = ("task", "computation", "top-1", "from", "to", "as fp32", "dB", "CPU s")
    click.echo(table(header, [_cells(row) for row in found]))


if __name__ == "__main__":
    main()
