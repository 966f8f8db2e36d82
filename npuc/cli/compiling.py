"""`npuc compile` and `npuc check`: commands on a model and a target."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npuc.cli.completing import NODES, PASSES
from npuc.cli.options import (
    SuggestingChoice,
    TargetCommand,
    bind_option,
    calibration_option,
    cut_options,
    force_option,
    format_options,
    input_option,
    json_option,
    limit_options,
    machine_option,
    parse_options,
    precision_option,
    prefix_option,
    removed_options,
    search_options,
    shape_option,
    shapes_option,
    strict_option,
    target_flags,
    target_option,
    tell_cache,
)
from npuc.cli.output import PATH, check_output, print_json, say, tell_warnings, verbose, with_seconds, working
from npuc.flag import CHOICES
from npuc.text.escaping import escape_report
from npuc.text.terminal import closest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuc.ir import Graph
    from npuc.program import Program
    from npuc.quantize.improvement.search import Trial
    from npuc.target import Options, Target


@click.command("compile", cls=TargetCommand)
@click.argument("model", type=PATH)
@target_option
@click.option("-o", "--output", type=PATH, help="The artefact to write [default: ./STEM.npu].")
@calibration_option
@input_option
@machine_option
@shapes_option
@precision_option
@target_flags
@strict_option
@click.option(
    "--deny", metavar="OP|NODE", multiple=True, shell_complete=NODES, help="Run an operator or a node on the host."
)
@click.option(
    "--layer",
    metavar="NODE=PRECISION|@FILE",
    multiple=True,
    help="Precision of a node in an int8 program; * in its name stands for any letters.",
)
@removed_options("max_partitions", "fallback")
@bind_option
@cut_options
@search_options
@click.option(
    "--allow", metavar="NAME", multiple=True, help="Allow one kind of rewrite that may be off by more than 1 LSB."
)
@click.option(
    "--dump-after", metavar="PASS", multiple=True, shell_complete=PASSES, help="Print the graph after a pass."
)
@click.option(
    "--proof",
    type=SuggestingChoice(CHOICES["proof"]),
    default="one",
    help="Samples on which to prove the program against the model before writing it [default: one].",
)
@prefix_option
@limit_options
@force_option
@json_option
def compile_command(
    model: Path,
    target: str,
    output: Path | None,
    calibration: tuple[Path, ...],
    shapes: tuple[dict[str, tuple[int, ...]], ...],
    cache: Path | None,
    dump_after: tuple[str, ...],
    force: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Compile MODEL.onnx into a program.

    The program is a directory: words, memory images and a manifest. The summary shows its cost, -v the decisions.

    \b
    Examples:
      npuc compile resnet8.onnx --target easynpu --calibration samples.npz
      npuc compile resnet8.onnx --target easynpu --machine large -O2 -v
      npuc compile net.onnx --target nvdla-small --input-shape x=1,3,96,96
      npuc compile net.onnx --target bm1684 \\
        --input-shape x=1,3,320,320 --input-shape x=1,3,640,640
      npuc compile net.onnx --target bm1684 -o net.npu --json --quiet
    """
    from npuc import driver, program
    from npuc.account import ACCOUNT, account_of, groups, reasons
    from npuc.driver import compile_variants
    from npuc.program import RANGES
    from npuc.quantize.calibration.cache import remembering
    from npuc.regions.variants import join_variants
    from npuc.registry import target as find
    from npuc.reports import summaries
    from npuc.target import Request

    kind = find(target)
    tried: list[Trial] = []
    options = replace(parse_options(kind, **flags), notify=tried.extend)
    _expect_passes(kind, options, dump_after)
    changes: list[tuple[str, Graph, Graph]] = []
    more = verbose()

    def hook(name: str, before: Graph, after: Graph, seconds: float) -> None:
        if more > 1 or (more and after is not before):
            change = f"{len(before.nodes)} -> {len(after.nodes)} nodes"
            say(f"pass {name:<24} {seconds * 1e3:7.2f} ms  {change}", err=True)
        if more and after is not before:
            changes.append((name, before, after))
        if name in dump_after or (more > 1 and after is not before):
            say(f"after {name}:\n{after}", err=True)

    directory = output or check_output(Path(f"{model.stem}.npu"))
    program.expect_replaceable(directory, force=force)
    said: list[str] = []
    with (
        working("compiling") as bar,
        remembering(replace(options, stage=bar.begin), cache, (model, *calibration), said.append) as remembered,
    ):
        request = Request(model, kind, remembered, calibration, hook=hook, synthetic=False)
        variants, _ = compile_variants(request, shapes)
        compiled = variants[0] if len(variants) == 1 else join_variants(variants)
    tell_cache(said)
    program.save(compiled, directory, force=force, final=True)
    if len(variants) > 1:
        _tell_variants(compiled, variants, directory, as_json=as_json)
        return
    entries = account_of(compiled.manifest)
    told = {
        ACCOUNT: compiled.manifest[ACCOUNT],
        "groups": groups(reasons(entries)),
        RANGES: asdict(compiled.ranges),
    }
    report: dict[str, Any] = {
        "status": "ok",
        "output": str(directory),
        "warnings": [],
        **dict.fromkeys(("traffic_bytes", "clock_mhz")),  # of a program that the host runs
        **compiled.manifest["report"],
        **told,
    }
    tell_warnings(report["warnings"])
    if more:
        report = with_seconds(report, tried)
        done = driver.rewrites_of(changes, kind, options)
        report["rewrites"] = [{**asdict(each), "text": str(each)} for each in done]
    if as_json:
        print_json(report)
    else:
        say(summaries.compile_summary(escape_report(report), entries, directory, verbose=more > 0))


def _tell_variants(compiled: Program, variants: Sequence[Program], directory: Path, *, as_json: bool) -> None:
    """Prints the results of a compile for several input shapes: each program, and the files they share."""
    from npuc.account import account_of
    from npuc.regions.variants import variants_of
    from npuc.reports import summaries

    told = variants_of(compiled.manifest)
    reports = [{"warnings": [], **each.manifest["report"]} for each in variants]
    held = sum(map(len, compiled.files.values()))
    alone = sum(len(data) for each in variants for data in (*each.files.values(), *each.evidence.values()))
    if as_json:
        described = [{**asdict(variant), "report": report} for variant, report in zip(told, reports, strict=True)]
        target = compiled.manifest["target"]
        print_json(
            {"status": "ok", "target": target, "output": str(directory), "bytes": held, "variants": described}
        )
    for variant, each, report in zip(told, variants, reports, strict=True):
        tell_warnings(report["warnings"])
        if not as_json:
            say(str(variant))
            whole = escape_report({"status": "ok", **report})
            say(
                summaries.compile_summary(
                    whole, account_of(each.manifest), directory / variant.path, verbose=False
                )
            )
    if not as_json:
        say(f"{len(told)} variants in {held:,} bytes; {alone:,} without what they share")


def _expect_passes(target: Target, options: Options, dump_after: tuple[str, ...]) -> None:
    """Raises UsageError for passes that this target does not run."""
    from npuc.regions.planning import passes_of

    known = [each.__name__ for each in passes_of(target, options)]
    for name in dump_after:
        if name not in known:
            hint = closest(name, known)
            raise click.UsageError(f"no pass is named '{name}'.{hint} Passes: {', '.join(known)}")


@click.command(cls=TargetCommand)
@click.argument("model", type=PATH)
@target_option
@machine_option
@shape_option
@precision_option
@target_flags
@strict_option
@bind_option
@input_option
@cut_options
@format_options("text", "json", "sarif")
@limit_options
def check(
    model: Path, target: str, shapes: dict[str, tuple[int, ...]], strict: bool, form: str, **flags: Any
) -> int:
    """Count the nodes that a target runs, and list the others. They are grouped by cause.

    The exit code is 1 if a node runs nowhere; with --strict, if a node does not run on the target.

    \b
    Examples:
      npuc check resnet8.onnx --target easynpu
      npuc check resnet8.onnx --target nvdla-small --strict --json
      npuc check resnet8.onnx --target nvdla-full --precision fp16
      npuc check resnet8.onnx --target bm1684 --format sarif > npuc.sarif
    """
    from npuc.account import ACCOUNT, as_json, check_summary, groups
    from npuc.cutting import part_of
    from npuc.driver import NOWHERE, survey_of
    from npuc.registry import target as find
    from npuc.target import Request

    kind = find(target)
    options = parse_options(kind, strict=strict, **flags)
    with part_of(Request(model, kind, options, shapes=shapes)) as (request, _):
        survey = survey_of(request)
    found = survey.reasons
    wrong = [each for each in found if strict or each.place == NOWHERE]
    if form == "json":
        status = "error" if wrong else "ok"
        errors = [each.problem.as_json() for each in wrong]
        counted = {"groups": groups(found), ACCOUNT: as_json(survey.entries)}
        print_json({"status": status, "target": target, "errors": errors, **counted})
    elif form == "sarif":
        from npuc.reports import sarif

        print_json(sarif.log([each.problem for each in found], model, [each not in wrong for each in found]))
    elif wrong:
        say("\n".join(str(each.problem) for each in wrong), err=True)
    hosted = [each for each in found if each not in wrong]
    if form == "text" and (survey.entries or hosted) and not (strict and wrong):
        say(check_summary(survey.entries, hosted, f"{model}: {target}", verbose=verbose() > 0))
    return 1 if wrong else 0
