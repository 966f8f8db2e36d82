"""`npuc accuracy`: the accuracy of a model and its program at their task."""

from __future__ import annotations

from pathlib import Path

import click

from npuc.cli.options import artefact_options, data_option, labels_option, removed_options, scheduler_option
from npuc.cli.output import answer, opened, working
from npuc.cli.paths import PATH
from npuc.text.escaping import shown


def _count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | str | None:
    """A number of samples, or all."""
    if value is None or value == "all":
        return value
    if not value.isdecimal() or not 0 < int(value) < 1 << 31:
        raise click.BadParameter(f"'{value}' is neither a number of samples nor 'all'", ctx, param)
    return int(value)


@click.command()
@click.argument("model", type=PATH)
@click.argument("artefact", type=PATH)
@data_option
@click.option(
    "--metric",
    metavar="NAME",
    help="top1, detections, ctc, regression, or FILE.py:FUNCTION, which gives a sample's number for its outputs by"
    " name and its label [default: by the shapes of outputs and labels].",
)
@labels_option
@removed_options("qdq", "truth", "layout", "box_format", "score_threshold", "nms_iou")
@removed_options("background", "score_function", "blank")
@click.option(
    "--simulate",
    metavar="N|all",
    callback=_count,
    help="Simulate the words of this many samples; the integer network computes the others [default: 8].",
)
@scheduler_option
@artefact_options
def accuracy(
    model: Path,
    artefact: Path,
    data: tuple[Path, ...],
    labels: Path | None,
    simulate: int | str | None,
    scheduler: str | None,
    allow_modified: bool,
    as_json: bool,
    metric: str | None,
) -> int:
    """Measure the accuracy of MODEL and its program. The task is to find classes, boxes, sequences or values.

    Labels are `y` in the data, or of pictures their folders or list. Without them the outputs are compared with
    those of MODEL in fp32. The words of the first samples are simulated and compared with the integer network,
    which computes the others.

    \b
    Examples:
      npuc accuracy resnet8.onnx resnet8.npu --data test.npz
      npuc accuracy resnet8.onnx resnet8.npu --data test.npz --json
      npuc accuracy ssd.onnx ssd.npu --data 'images/*.npz' --metric my.py:map
    """
    from npuc.cutting import compiled_part
    from npuc.images.description import labels_of
    from npuc.program import with_labels
    from npuc.reports import judgements
    from npuc.variants import chosen
    from npuc.verification import accuracy as judging
    from npuc.verification.judging.choosing import Asked, NotTaken

    if not data:
        raise click.UsageError("Missing option '--data'.")
    artefact = chosen(artefact, data, allow_modified=allow_modified)
    program = opened(artefact, allow_modified).program
    if labels is not None:
        program = with_labels(program, labels_of(labels))
    model, data = click.get_current_context().with_resource(compiled_part(model, program, data))
    subject = judging.JudgedFiles(model.absolute(), artefact.absolute(), allow_modified)
    try:
        with working("accuracy") as bar:
            report = judging.accuracy(
                subject, program, data, Asked(metric), simulate=simulate, scheduler=scheduler, bar=bar
            )
    except NotTaken as error:
        raise click.UsageError(str(error)) from None
    answer(report, judgements.as_text(shown(report)), as_json)
    return 0 if report["status"] == "ok" else 1
