"""`npuc quantize`: the integer network as a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from npuc.cli.options import (
    TargetCommand,
    asked,
    calibration_option,
    cut_options,
    input_option,
    json_option,
    limit_options,
    machine_option,
    precision_option,
    search_options,
    shape_option,
    target_flags,
    target_option,
    tell_cache,
)
from npuc.cli.output import working, written
from npuc.cli.paths import PATH


@click.command(cls=TargetCommand)
@click.argument("model", type=PATH)
@click.option("-o", "--output", type=PATH, required=True, help="The quantised model to write (.onnx).")
@target_option
@calibration_option
@input_option
@machine_option
@shape_option
@precision_option
@target_flags
@cut_options
@search_options
@limit_options
@json_option
def quantize(
    model: Path,
    output: Path,
    target: str,
    calibration: tuple[Path, ...],
    shapes: dict[str, tuple[int, ...]],
    cache: Path | None,
    level: str,
    precision: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Write MODEL quantised as a target computes it.

    The result is a standard ONNX model with QuantizeLinear and DequantizeLinear.

    \b
    Examples:
      npuc quantize resnet8.onnx -o q.onnx --target easynpu --calibration s.npz
      npuc quantize resnet8.onnx -o q.onnx --target nvdla-small -O2
    """
    from npuc import driver
    from npuc.quantize.calibration.cache import remembering
    from npuc.quantize.improvement.search import Trial
    from npuc.quantize.improvement.search import as_json as steps_of
    from npuc.registry import target as find
    from npuc.target import FLOATING, Request

    kind = find(target)
    if not kind.has_integer_network:
        raise click.UsageError(f"{target} has no integer network that other runtimes could open")
    tried: list[Trial] = []
    if precision in FLOATING:
        raise click.UsageError(f"--precision {precision} has no integers")
    options = asked(kind, level=level, precision=precision or "int8", **flags)
    said: list[str] = []
    with (
        working("quantizing") as bar,
        remembering(
            replace(options, notify=tried.extend, stage=bar.begin), cache, (model, *calibration), said.append
        ) as remembered,
    ):
        bar.begin("choosing scales")
        found, _ = driver.quantise_model(Request(model, kind, remembered, calibration, shapes, synthetic=False))
    tell_cache(said)
    written(output, found, as_json, quantization={"level": level, "steps": steps_of(tried)})
