"""The choice of a metric: from the shapes of outputs and labels, or from the user's options."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from npuc.errors import DataError
from npuc.flag import OWN_METRIC
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.program import OBJECT, STRING, Port, Program
from npuc.samples.loading import Samples
from npuc.verification.judging.boxes import Decoding
from npuc.verification.judging.detections import Detections
from npuc.verification.judging.metric import Metric
from npuc.verification.judging.sequences import Sequences
from npuc.verification.judging.values import Classes, Own, Values, load_function

METRICS = ("top1", "detections", "ctc", "regression")
STRIDES = ((8, 16, 32), (8, 16, 32, 64))
"""Strides, in pixels of the image, of the feature maps of single-output detectors."""
ANCHORS = (1, 3)
"""Boxes per position of a feature map."""
IMAGE_CHANNELS = (1, 3, 4)
RECOGNISED = (
    "one class label a sample (top1); labels of the first output's shape, or a single value (regression); "
    "two outputs (N, 4) and (N, classes), or one (4 + classes, N) or (N, 5 + classes) with the N of a YOLO on the "
    "input image (detections); one output (steps, classes) of probabilities, or with "
    "sequences of labels (ctc)"
)


class NotTaken(ValueError):
    """An option that a metric has no use for, or an invalid value; the message names it as on the command line."""


@frozen
class Asked:
    """The user's options; None: by the shapes of outputs and labels."""

    metric: str | None = None
    """One of METRICS, or FILE.py:FUNCTION."""

    def __post_init__(self) -> None:
        """Raises NotTaken for an invalid value."""
        if self.metric is not None and self.metric not in METRICS and self.own is None:
            raise NotTaken(f"--metric is {self.metric!r}, and may be {', '.join(METRICS)} or FILE.py:FUNCTION")

    @property
    def own(self) -> tuple[str, str] | None:
        """File and function of a metric of the user's own."""
        file, colon, function = (self.metric or "").rpartition(":")
        return (file, function) if colon and file.endswith(".py") and function.isidentifier() else None


def choose_metric(program: Program, samples: Samples, asked: Asked) -> tuple[Metric, str, Array | None]:
    """The metric, the reason for choosing it, and the labels that it uses, if any.

    Raises DataError (E401, E402) if the shapes are ambiguous or do not fit the options.
    """
    if asked.own is not None:
        truths = _truths(samples)
        load_function(*asked.own)
        return (
            Own(tuple(port.name for port in program.outputs), truths is not None, *asked.own),
            "--metric",
            truths,
        )
    name, why = (asked.metric, "--metric") if asked.metric else _recognise(program, samples)
    if name == "top1":
        metric = _classes(program, samples)
        return metric, why, samples.labels if samples.labels is not None else samples.truth
    truths = _truths(samples)
    match name:
        case "detections":
            return _detections(program, certain=asked.metric is not None), why, truths
        case "ctc":
            certain = asked.metric is not None or _are_sequences(truths)
            return _sequences(program, certain=certain), why, truths
        case _:
            return _values(program, labelled=truths is not None), why, truths


def _truths(samples: Samples) -> Array | None:
    """The labels; None: fp32 is the reference. Raises DataError (E401) if only some samples have one."""
    if samples.truth is None and samples.left_out:
        remedy = "save them in every file, or in none to compare with fp32"
        raise DataError("E401", samples.left_out, tensor="y", remedy=remedy)
    return samples.truth


def reading(program: Program) -> Classes | Detections | Sequences | None:
    """What the outputs are by their shapes alone: a class, boxes, a sequence; None for anything else."""
    first = program.outputs[0]
    if any(port.dtype in (STRING, OBJECT) or min(port.shape, default=1) < 1 for port in program.outputs):
        return None
    if _layout(program) is not None:
        found = _detections(program, certain=True)
        assert isinstance(found, Detections)
        return found
    match _squeeze(first.shape) if len(program.outputs) == 1 else ():
        case (classes,):
            return Classes(first.name, classes)
        case (steps, classes):
            return Sequences(first.name, steps, classes)
        case _:
            return None


def _recognise(program: Program, samples: Samples) -> tuple[str, str]:
    first = program.outputs[0]
    if samples.labels is not None and prod(first.shape) != 1:
        return "top1", "the labels are one class a sample"
    if (batch := _batch(program, samples)) > 1:
        return "top1", f"the labels are one class for each of {batch} elements of a sample"
    steps = len(program.outputs) == 1 and len(_squeeze(first.shape)) == 2
    if steps and _are_sequences(samples.truth):
        return "ctc", f"one output of {_text(first)}: steps and classes; a sequence of labels a sample"
    layout = _layout(program)
    if layout is not None:
        return "detections", layout[1]
    if samples.truth is not None and _squeeze(samples.truth.shape[1:]) == _squeeze(first.shape):
        return "regression", "the labels have the shape of the first output"
    if steps:
        return "ctc", f"one output of {_text(first)}: steps and classes"
    if prod(first.shape) == 1:
        return "regression", "the first output is one value"
    if len(_squeeze(first.shape)) == 1:
        raise _without_labels(samples)
    shapes = ", ".join(f"'{port.name}' {_text(port)}" for port in program.outputs)
    told = "" if samples.truth is None else f", labels {list(samples.truth.shape)}"
    reason = f"no metric is recognised by the outputs {shapes}{told}"
    remedy = "say what they are with --metric; --metric regression compares outputs of any shape"
    raise DataError("E402", reason, tensor=first.name, limit=RECOGNISED, remedy=remedy)


def _batch(program: Program, samples: Samples) -> int:
    """The elements of a sample that have a label each and that the program keeps apart; 1 if it is not so."""
    if samples.labels is not None or not _are_sequences(samples.truth):
        return 1
    assert samples.truth is not None
    batch, ports = samples.truth.shape[1], (*program.inputs, *program.outputs)
    apart = all(each.shape[:1] == (batch,) for each in ports) and prod(program.outputs[0].shape) > batch
    return batch if apart else 1


def _are_sequences(truth: Array | None) -> bool:
    return truth is not None and truth.ndim == 2 and truth.dtype.kind in "iu"


def _without_labels(samples: Samples) -> DataError:
    reason = samples.left_out or "the data has no labels: an array 'y' with a class for every sample"
    remedy = "save them with numpy.savez(..., y=labels), or compare values with fp32's: --metric regression"
    return DataError("E401", reason, tensor="y", remedy=remedy)


def _text(port: Port) -> str:
    return f"({', '.join(map(str, port.shape))})"


def _squeeze(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent != 1)


def _flat(port: Port) -> tuple[int, ...]:
    """The shape without the batch axis."""
    return port.shape[1:] if port.shape[:1] == (1,) else port.shape


def _image(program: Program) -> tuple[int, int] | None:
    """Height and width of the only input that looks like an image."""
    found: list[tuple[int, int]] = []
    for shape in (_flat(port) for port in program.inputs):
        if len(shape) == 3 and min(shape) > 0:
            if shape[0] in IMAGE_CHANNELS:
                found.append((shape[1], shape[2]))
            elif shape[2] in IMAGE_CHANNELS:
                found.append((shape[0], shape[1]))
    return found[0] if len(found) == 1 else None


def _counts(image: tuple[int, int] | None) -> set[int]:
    """The possible numbers of boxes of a single-output detector on such an image."""
    height, width = image or (0, 0)
    places = [
        sum((height // each) * (width // each) for each in strides)
        for strides in STRIDES
        if not (height % strides[-1] or width % strides[-1])
    ]
    return {anchors * count for anchors in ANCHORS for count in places if count}


def _layout(program: Program) -> tuple[str, str] | None:
    """The layout of a detector's outputs, inferred from their shapes, and the reason for it."""
    ports = program.outputs
    if len(ports) == 2 and (pair := _pair(ports)) is not None:
        return "pair", f"boxes {_text(pair[0])} and scores {_text(pair[1])}"
    counts, shape = _counts(_image(program)), _flat(ports[0])
    if len(ports) == 1 and len(shape) == 2:
        if shape[1] in counts and shape[0] > 4:
            return (
                "columns",
                f"one output {_text(ports[0])}: 4 + {shape[0] - 4} classes by the boxes of this image",
            )
        if shape[0] in counts and shape[1] > 5:
            return "rows", f"one output {_text(ports[0])}: the boxes of this image by 5 + {shape[1] - 5} classes"
    return None


def _pair(ports: Sequence[Port]) -> tuple[Port, Port] | None:
    """The ports of boxes and scores; None if the shapes are ambiguous."""
    shapes = [_flat(port) for port in ports]
    if not all(len(shape) == 2 for shape in shapes) or shapes[0][0] != shapes[1][0] or shapes[0][0] < 2:
        return None
    four = [port for port, shape in zip(ports, shapes, strict=True) if shape[1] == 4]
    others = [port for port, shape in zip(ports, shapes, strict=True) if shape[1] != 4]
    return (four[0], others[0]) if len(four) == 1 and min(map(min, shapes)) > 0 else None


def _classes(program: Program, samples: Samples) -> Metric:
    first = _numbers(program.outputs[0])
    batch = _batch(program, samples)
    if samples.labels is None and batch == 1:
        raise _without_labels(samples)
    if prod(first.shape) < 2:
        raise DataError("E402", "the output has one element: there are no classes to count", tensor=first.name)
    return Classes(first.name, prod(first.shape) // batch, batch)


def _detections(program: Program, *, certain: bool) -> Metric:
    found = _layout(program)
    if found is None:
        reason = "the outputs are not recognised as a detector's"
        limit = "two outputs (N, 4) and (N, classes); one output (4 + classes, N) or (N, 5 + classes)"
        remedy = f"{OWN_METRIC}; heat maps are compared with --metric regression"
        raise DataError("E402", reason, tensor=program.outputs[0].name, limit=limit, remedy=remedy)
    layout, _ = found
    pair = _pair(program.outputs) if layout == "pair" else None
    boxes, scores = pair or (program.outputs[0],) * 2
    rows, columns = _flat(_numbers(scores))
    decoding = Decoding(layout, boxes.name, scores.name, rows, columns, "corners" if pair else "centre")
    return Detections(decoding, _image(program), certain or layout == "pair")


def _sequences(program: Program, *, certain: bool) -> Metric:
    port = _numbers(program.outputs[0])
    shape = _squeeze(port.shape)
    if len(shape) != 2:
        raise _misfit(port, "steps and classes: two axes longer than 1")
    steps, classes = shape
    return Sequences(port.name, steps, classes, certain=certain)


def _values(program: Program, *, labelled: bool) -> Metric:
    names = tuple(_numbers(port).name for port in program.outputs)
    return Values(names, labelled)


def _numbers(port: Port) -> Port:
    """The output, if it is numeric and of known shape. Raises DataError (E402)."""
    if port.dtype in (STRING, OBJECT) or min(port.shape, default=1) < 1:
        raise _misfit(port, "numbers in a shape that is known before the run")
    return port


def _misfit(port: Port, limit: str) -> DataError:
    return DataError("E402", f"the output is {port.dtype} {_text(port)}", tensor=port.name, limit=limit)
