"""Options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import click

from npuc.cli.completing import MACHINES
from npuc.cli.output import MACHINE, PATH, QUIET, VERBOSE, note, verbose
from npuc.flag import CHOICES, KEYWORDS, MIXED, REMOVED
from npuc.registry import TARGETS, names, target
from npuc.system import budget
from npuc.targets.easynpu.flags import ISA
from npuc.text.terminal import closest

if TYPE_CHECKING:
    from npuc.flag import Flag
    from npuc.target import Options, Target

T = TypeVar("T")


class SuggestingChoice(click.Choice[str]):
    """A choice that suggests the closest value for an invalid one."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Click's message and the closest value."""
        return f"{super().get_invalid_choice_message(value, ctx)}{closest(str(value), self.choices)}"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """The choices, in a sentence: click shows its own text with literal tabs."""
        del param, ctx
        return f"Choose from: {', '.join(self.choices)}."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The choice. Fails with what to use instead for one that was removed."""
        key = f"{param.name if param is not None else ''} {value}"
        if key in REMOVED:
            self.fail(f"'{value}' was removed; {REMOVED[key]}", param, ctx)
        return str(super().convert(value, param, ctx))


class TargetChoice(SuggestingChoice):
    """npuc's targets; installed packages are searched only for other names."""

    def __init__(self) -> None:
        super().__init__(tuple(TARGETS))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The target's name. Fails with a list of all names."""
        if value in TARGETS:
            return str(value)
        return SuggestingChoice(names()).convert(value, param, ctx)


def _shapes(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    return dict(_shape(ctx, param, value) for value in values)


def _several(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[dict[str, tuple[int, ...]], ...]:
    """The shapes of every variant: the n-th of each input, or the only one."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for value in values:
        name, shape = _shape(ctx, param, value)
        if shape not in found.setdefault(name, []):
            found[name].append(shape)
    count = max(map(len, found.values()), default=1)
    for name, shapes in found.items():
        if len(shapes) not in (1, count):
            reason = f"'{name}' has {len(shapes)} shapes and another input {count}: give one, or as many of each"
            raise click.BadParameter(reason, ctx, param)
    return tuple({name: shapes[at % len(shapes)] for name, shapes in found.items()} for at in range(count))


def _shape(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, tuple[int, ...]]:
    """Name and extents of NAME=1,3,224,224, split at the last `=`; NAME= is a scalar."""
    name, equals, extents = value.rpartition("=")
    texts = extents.split(",") if extents else []
    if not equals or not name or not all(text.isdecimal() and len(text) < 20 and int(text) for text in texts):
        raise click.BadParameter(f"'{value}' is not of the form NAME=1,3,224,224", ctx, param)
    return name, tuple(int(text) for text in texts)


def _bindings(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, float], ...]:
    return tuple(_binding(ctx, param, value) for value in values)


def _binding(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, float]:
    """Name and value of NAME=VALUE, split at the last `=`; true and false are 1 and 0."""
    name, equals, text = value.rpartition("=")
    try:
        number = {"true": 1.0, "false": 0.0}[text.lower()] if text.lower() in ("true", "false") else float(text)
    except ValueError:
        number = None
    if not equals or not name or number is None:
        raise click.BadParameter(f"'{value}' is not of the form NAME=VALUE", ctx, param)
    return name, number


def _address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """An address with a port."""
    if value is not None and not value.rpartition(":")[2].isdecimal():
        raise click.BadParameter(f"'{value}' is not of the form tcp://HOST:PORT", ctx, param)
    return value


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _add_all(*options: Decorator) -> Decorator:
    """Adds these options, in this order."""

    def add_options(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add_options


target_option = click.option("--target", type=TargetChoice(), required=True, help="Target machine family.")
machine_option = click.option(
    "--machine",
    type=MACHINE,
    metavar="NAME|FILE",
    help="Machine description: a shipped name or a TOML file.",
    shell_complete=MACHINES,
)
shape_option = click.option(
    "--input-shape",
    "shapes",
    metavar="NAME=1,3,224,224",
    multiple=True,
    callback=_shapes,
    help="Bind dynamic dimensions.",
)
shapes_option = click.option(
    "--input-shape",
    "shapes",
    metavar="NAME=1,3,224,224",
    multiple=True,
    callback=_several,
    help="Bind dynamic dimensions; several shapes of an input compile a program variant for each.",
)
bind_option = click.option(
    "--bind",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_bindings,
    help="Replace a scalar input by a constant, or give a named dimension its extent.",
)
cut_options = _add_all(
    click.option(
        "--inputs", metavar="TENSOR,..", help="Compile the part of the model that begins at these tensors."
    ),
    click.option(
        "--outputs", metavar="TENSOR,..", help="Compile the part of the model that ends at these tensors."
    ),
)


def option_of(name: str) -> str:
    """A parameter's spelling on the command line."""
    return f"--{name.replace('_', '-')}"


def removed_options(*names: str) -> Decorator:
    """Options that the last version had: each is refused with what to use instead."""

    def refuse(_ctx: click.Context, param: click.Parameter, value: object) -> None:
        if value is not None:
            raise click.UsageError(f"{param.opts[0]} was removed; {INSTEAD[str(param.name)]}")

    return _add_all(
        *(
            click.option(
                option_of(name),
                name,
                hidden=True,
                expose_value=False,
                callback=refuse,
                is_flag=name in ("full_names", "stepping", "sort"),
                default=None,
            )
            for name in names
        )
    )


INSTEAD = {**REMOVED, **{name: f"it is {what}" for name, what in KEYWORDS.items()}}
search_options = _add_all(
    removed_options("scales", "input_data"),
    click.option(
        "--calibration-cache",
        "cache",
        type=PATH,
        help="File or folder that keeps calibration results for later compilations.",
    ),
    click.option("--mixed", type=SuggestingChoice(CHOICES["mixed"]), hidden=True),  # auto is --precision mixed
    click.option(
        "-O",
        "level",
        type=SuggestingChoice(CHOICES["level"]),
        default="1",
        help="Effort for accuracy: 0 min-max scales; 1 a search in about twice the time [default];"
        " 2 a full search.",
    ),
    click.option(
        "--method", type=SuggestingChoice(CHOICES["method"]), help="Calibration method [default: set by -O]."
    ),
    click.option(
        "--scales-in",
        type=PATH,
        metavar="FILE",
        help="Table of scales that tensors must have (.toml, or NVIDIA's .json); npuc chooses the others.",
    ),
)
"""Options of the choice of scales."""
calibration_option = click.option(
    "--calibration",
    type=PATH,
    multiple=True,
    help="Calibration samples: .npz files or pictures, a folder or list of them, a quoted pattern, or synthetic.",
)
data_option = click.option(
    "--data",
    type=PATH,
    multiple=True,
    help="Samples: .npz files or pictures, a folder or list of them, a quoted pattern, or synthetic.",
)
input_option = click.option(
    "--input",
    type=MACHINE,
    metavar="PRESET|FILE",
    help="What the image input expects: imagenet, tf, caffe-bgr, yolo, mtcnn, none, or a TOML file.",
)
labels_option = click.option("--labels", type=PATH, metavar="FILE", help="Names of the classes, one a line.")


def _volume(ctx: click.Context, param: click.Parameter, value: int) -> None:
    """Keeps how much is asked for. Raises UsageError for less and more at once."""
    if value:
        ctx.meta[{"quiet": QUIET, "verbose": VERBOSE}[str(param.name)]] = value
    if ctx.meta.get(QUIET) and ctx.meta.get(VERBOSE):
        raise click.UsageError("--quiet and --verbose exclude each other")


volume_options = _add_all(
    click.option(
        "-v",
        "--verbose",
        count=True,
        expose_value=False,
        callback=_volume,
        help="Print more: details, and on stderr each stage with its seconds.",
    ),
    click.option(
        "-q", "--quiet", is_flag=True, expose_value=False, callback=_volume, help="Print errors only (and --json)."
    ),
)
json_option = _add_all(
    volume_options, click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
)
"""What every command has that reports."""
scheduler_option = click.option(
    "--scheduler",
    metavar="ADDRESS",
    callback=_address,
    help="Compute on this Dask cluster instead; needs npuc[dask].",
)
force_option = click.option("--force", is_flag=True, help="Replace an output that is not an npuc artefact.")
strict_option = click.option("--strict", is_flag=True, help="Refuse every host step but input/output conversion.")
precision_option = click.option(
    "--precision",
    type=SuggestingChoice(("int8", "int16", "fp16", "fp32", MIXED)),
    help="Number format [default: the target's first]; mixed: int8, but the layers that lose the most in int16"
    " (nvdla-full), or in float on the host.",
)


def _help(flag: Flag) -> str:
    return f"{flag.help} [default: {flag.values[0]}]"


target_flags = _add_all(
    click.option(option_of(ISA.name), type=SuggestingChoice(ISA.values), help=_help(ISA)),
    removed_options("objective", "weights"),
)
"""Options that only some targets have."""


class TargetCommand(click.Command):
    """A command with `target_flags`; for a target of an installed package it accepts that target's flags too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments, including the flags of the targets named in them."""
        ctx.meta[INSTALLED] = [
            click.Option([option_of(flag.name)], type=SuggestingChoice(flag.values), help=_help(flag))
            for flag in dict.fromkeys(flag for name in _foreign_targets(args) for flag in _flags_of(name))
        ]
        return super().parse_args(ctx, args)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The parameters; an installed target's flag replaces one of the same name."""
        added: list[click.Option] = ctx.meta.get(INSTALLED, [])
        names = {each.name for each in added}
        return [*added, *(each for each in super().get_params(ctx) if each.name not in names)]


INSTALLED = "npuc.cli.options.installed"
"""The key in a context's metadata for the flags of installed targets."""


def _foreign_targets(args: Sequence[str]) -> Iterator[str]:
    """Names of targets in the arguments that are not npuc's own."""
    for option, value in pairwise((*args, "")):
        name, equals, joined = option.partition("=")
        if name in ("--target", "--targets"):
            given = (joined if equals else value).split(",")
            yield from (each.partition(":")[0] for each in given if each.partition(":")[0] not in TARGETS)


def _flags_of(name: str) -> Sequence[Flag]:
    """The flags of a target of an installed package; none if there is no such target."""
    return target(name).flags if name in names() else ()


def parse_options(target: Target, **flags: Any) -> Options:
    """The options of a compilation; missing values are None or empty. Raises UsageError for unsupported flags."""
    from npuc.flags import options_of

    given = {name: value for name, value in flags.items() if value not in (None, ())}
    try:
        return options_of(target, None, given, spelled=lambda name: "-O" if name == "level" else option_of(name))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def format_options(*forms: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Adds --format, of which the first form is the default, and --json, the same as --format json.

    The command gets `form`.
    """

    def add_format(command: Callable[..., T]) -> Callable[..., T]:
        @click.option(
            "--format",
            "form",
            type=SuggestingChoice(forms),
            default=forms[0],
            help=f"Output format [default: {forms[0]}].",
        )
        @volume_options
        @click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
        @wraps(command)
        def with_format(*args: Any, form: str, as_json: bool, **options: Any) -> T:
            return command(*args, form="json" if as_json else form, **options)

        return with_format

    return add_format


chip_options = _add_all(
    click.option(
        "--chip-model",
        type=SuggestingChoice(("own", "quick", "vendor", "rtl")),
        default="own",
        help="own: npuc's chip model [default]; quick: the same with float sums for fp16 (nvdla); "
        "vendor: the vendor's, in the folder $NPUC_OKK_LIBS (bm1684); rtl: the hardware description (easynpu).",
    ),
    removed_options("okk_libs"),
)


def expect_chip_model(target: Target, chip_model: str) -> None:
    """Raises UsageError for a chip model that this target lacks."""
    if chip_model not in target.chip_models:
        raise click.UsageError(f"{target.name} has no chip model '{chip_model}': {', '.join(target.chip_models)}")


def _seconds() -> int | None:
    """The time limit of the environment. Raises UsageError for anything but a number of seconds."""
    given = os.environ.get(TIME_LIMIT)
    if given is not None and (not given.isdecimal() or not 0 < int(given) < 1 << 31):
        raise click.UsageError(f"{TIME_LIMIT} is '{given}', not a number of seconds")
    return None if given is None else int(given)


TIME_LIMIT, CUSTOM_OPS = "NPUC_TIME_LIMIT", "NPUC_CUSTOM_OPS"


def limit_options(command: Callable[..., T]) -> Callable[..., T]:
    """Adds --memory-limit. It holds for the whole command, as do time limit and operators of the environment."""

    @click.option(
        "--memory-limit",
        type=click.IntRange(min=1),
        metavar="BYTES",
        help=f"Memory that a model and its data may use together [default: {budget.MEMORY_LIMIT}].",
    )
    @removed_options("time_limit", "custom_ops")
    @wraps(command)
    def with_limits(*args: Any, memory_limit: int | None, **options: Any) -> T:
        with budget.set_limits(memory_limit, _seconds()), _operators():
            return command(*args, **options)

    return with_limits


def _operators() -> AbstractContextManager[None]:
    """A block with the operators that the environment names."""
    given = os.environ.get(CUSTOM_OPS, "")
    if not given:
        return nullcontext()
    from npuc.reference import custom_ops

    return custom_ops(given.split(os.pathsep))


prefix_option = click.option(
    "--prefix",
    metavar="NAME",
    help="What exported files and functions begin with (okkernel) [default: npuc_ and the model's name].",
)
modified_option = click.option("--allow-modified", is_flag=True, help="Load files that do not match their sha256.")


artefact_options = _add_all(modified_option, limit_options, json_option)
"""Options of commands that open an artefact and run models."""


def tell_cache(said: Sequence[str]) -> None:
    """Reports the use of the calibration cache on stderr: the last line only if verbose."""
    for text in said if verbose() else said[:-1]:
        note(f"note: {text}")
