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
@click.option(
    "--scales-out",
    type=PATH,
    metavar="FILE",
    help="Also write the table of scales (.toml, or .json for NVIDIA's); each tensor then has one scale.",
)
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
    scales_out: Path | None,
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
      npuc quantize net.onnx -o q.onnx --target easynpu --scales-out scales.toml
    """
    from npuc import driver
    from npuc.quantize.calibration.cache import remembering
    from npuc.quantize.improvement.search import Trial
    from npuc.quantize.improvement.search import as_json as steps_of
    from npuc.quantize.table import as_table
    from npuc.registry import target as find
    from npuc.storage.files import replacing
    from npuc.target import FLOATING, Request

    kind = find(target)
    if not kind.has_integer_network:
        raise click.UsageError(f"{target} has no integer network that other runtimes could open")
    tried: list[Trial] = []
    if precision in FLOATING:
        raise click.UsageError(f"--precision {precision} has no integers")
    options = asked(kind, level=level, precision=precision or "int8", **flags)
    options = replace(options, notify=tried.extend, one_scale=scales_out is not None)
    said: list[str] = []
    with (
        working("quantizing") as bar,
        remembering(replace(options, stage=bar.begin), cache, (model, *calibration), said.append) as remembered,
    ):
        bar.begin("choosing scales")
        found, network = driver.quantise_model(
            Request(model, kind, remembered, calibration, shapes, synthetic=False)
        )
    tell_cache(said)
    if scales_out is not None:
        with replacing(scales_out) as staging:
            staging.write_text(as_table(network, scales_out.suffix), encoding="utf-8")
    written(output, found, as_json, quantization={"level": level, "steps": steps_of(tried)})
