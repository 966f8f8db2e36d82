"""`npuc accuracy`: the accuracy of a model and its program at their task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from npuc.cli.options import Choice, artefact_options, data_option, scheduler_option
from npuc.cli.output import answer, opened
from npuc.cli.paths import PATH
from npuc.text.escaping import shown

SHARE = click.FloatRange(0, 1)


@click.command()
@click.argument("model", type=PATH)
@click.argument("artefact", type=PATH)
@data_option
@click.option("--qdq", type=PATH, help="A model from `npuc quantize`; adds a row for it.")
@click.option(
    "--metric",
    type=Choice(("top1", "detections", "ctc", "regression")),
    help="How outputs are judged [default: by their shapes and the labels].",
)
@click.option(
    "--truth", type=Choice(("labels", "fp32")), help="What outputs are compared with [default: labels, if any]."
)
@click.option(
    "--layout",
    type=Choice(("pair", "rows", "columns")),
    help="Boxes and scores as two outputs; one output with a row a box (or step of a sequence), or a column.",
)
@click.option(
    "--box-format",
    type=Choice(("corners", "centre")),
    help="x1, y1, x2, y2 or x, y, width, height [default: corners of a pair, else centre].",
)
@click.option("--score-threshold", type=SHARE, help="The least score of a detection [default: 0.25].")
@click.option(
    "--nms-iou", type=SHARE, help="Overlap above which two boxes of a class are one; 1 keeps all [default: 0.45]."
)
@click.option(
    "--background", type=Choice(("first", "last", "none")), help="Which score of a pair stands for no object."
)
@click.option(
    "--score-function",
    type=Choice(("identity", "sigmoid", "softmax")),
    help="The function from scores to probabilities [default: identity].",
)
@click.option(
    "--blank", type=Choice(("first", "last")), help="The class of CTC that is no character [default: first]."
)
@scheduler_option
@artefact_options
def accuracy(
    model: Path,
    artefact: Path,
    data: tuple[Path, ...],
    qdq: Path | None,
    scheduler: str | None,
    allow_modified: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Measure the accuracy of MODEL and its program. The task is to find classes, boxes, sequences or values.

    Labels are `y` in the data. Without them the outputs are compared with those of MODEL in fp32.

    \b
    Examples:
      npuc accuracy resnet8.onnx resnet8.npu --data test.npz
      npuc accuracy resnet8.onnx resnet8.npu --data test.npz --qdq q.onnx --json
      npuc accuracy yolov8n.onnx yolov8n.npu --data x.npz --nms-iou 0.6
      npuc accuracy ssd.onnx ssd.npu --data 'images/*.npz' --background first
    """
    from npuc.reports import judgements
    from npuc.text.progress import progress
    from npuc.variants import chosen
    from npuc.verification import accuracy as judging
    from npuc.verification.judging.choosing import Asked, NotTaken

    if not data:
        raise click.UsageError("Missing option '--data'.")
    artefact = chosen(artefact, data, allow_modified=allow_modified)
    program = opened(artefact, allow_modified).program
    subject = judging.Subject(model.absolute(), artefact.absolute(), qdq and qdq.absolute(), allow_modified)
    try:
        with progress("accuracy", quiet=as_json) as bar:
            report = judging.accuracy(subject, program, data, Asked(**asked), scheduler=scheduler, bar=bar)
    except NotTaken as error:
        raise click.UsageError(str(error)) from None
    answer(report, judgements.as_text(shown(report)), as_json)
