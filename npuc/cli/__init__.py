"""The command line: parses options, calls the driver, prints text or JSON. Contract: docs/cli.md.

Each command imports the heavy modules that it needs, so that `npuc --help` starts at once.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import click

from npuc import __version__
from npuc.cli import artefacts, comparing, compiling, judging, listing, reporting, running
from npuc.cli.output import CannotPrint, print_json, say
from npuc.errors import ArtefactError, Defect, NpucError
from npuc.system import interrupts
from npuc.system.budget import is_exhausted, no_memory

BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""numpy's matrices are small here: idle threads would cost more than they save."""
OUT_OF_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
"""Errors of a system without room for another file."""


def main() -> None:
    """Runs the command of sys.argv and exits."""
    sys.exit(outcome())


def outcome() -> int:
    """Runs the command of sys.argv. Exit code: 0 done, 1 refused or out of tolerance, 2 usage."""
    for name in BLAS_THREADS:
        os.environ.setdefault(name, "1")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `npuc targets >&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _outcome(sys.argv[1:])
        sys.stdout.flush()
    except OSError as error:
        code = _cannot_print(error) if error.filename is None else _defective(error, _wants_json(sys.argv[1:]))
    return code


def _outcome(arguments: list[str]) -> int:
    """Runs a command and returns its exit code; errors are printed, also as JSON if requested."""
    wants_json = _wants_json(arguments)
    try:
        return npuc.main(arguments, standalone_mode=False, prog_name="npuc") or 0
    except NpucError as error:
        return _print_refusal(error, wants_json)
    except (MemoryError, ImportError, OSError) as error:
        if is_exhausted(error):
            return _print_refusal(no_memory(), wants_json)
        if not isinstance(error, OSError) or error.errno not in OUT_OF_ROOM or isinstance(error, CannotPrint):
            raise
        reason = f"{error.filename or 'a temporary file'} cannot be written: {error.strerror}"
        remedy = "make room, or let TMPDIR name a folder with room"
        return _print_refusal(ArtefactError("E506", reason, remedy=remedy), wants_json)
    except click.ClickException as error:
        if wants_json:
            print_json({"status": "error", "errors": [_usage(error)]})
        message = io.StringIO()
        error.show(message)
        say(message.getvalue().rstrip("\n"), err=True)
        return error.exit_code
    except click.exceptions.Abort:  # click's KeyboardInterrupt
        return 130
    except Exception as error:
        return _defective(error, wants_json)


def _wants_json(arguments: list[str]) -> bool:
    """Whether a command's errors are JSON, too."""
    return "--json" in arguments or "--format=json" in arguments or "--format json" in " ".join(arguments)


def _defective(error: Exception, wants_json: bool) -> int:
    """Prints a defect of npuc as an error, and returns the exit code. NPUC_TRACEBACK=1: raises it instead."""
    if os.environ.get("NPUC_TRACEBACK"):
        raise error
    return _print_refusal(NpucError.of([Defect.of(error).problem]), wants_json)


def _print_refusal(error: NpucError, wants_json: bool) -> int:
    """Prints an error, also as JSON if requested, and returns the exit code."""
    if interrupts.has_arrived():
        return 130
    if wants_json:
        print_json({"status": "error", "errors": [problem.as_json() for problem in error.problems]})
    say(str(error), err=True)
    return 1


def _usage(error: click.ClickException) -> dict[str, str | None]:
    """A usage error in the shape of a problem."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else "npuc"
    unknown = dict.fromkeys(("node", "op", "tensor", "limit"))
    return {"code": "usage", **unknown, "reason": error.format_message(), "remedy": f"{command} --help"}


def _cannot_print(error: OSError) -> int:
    """The exit code if stdout cannot be written; silent if its reader has gone, as in `npuc dump OUT | head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if error.errno != errno.EPIPE:
        say(str(ArtefactError("E506", f"standard output cannot be written: {error.strerror}")), err=True)
    return 1


@click.group(name="npuc", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="npuc")
def npuc() -> None:
    """Compiles ONNX models into programs for neural processing units, and proves each program.

    \b
    Examples:
      npuc compile model.onnx --target easynpu --calibration samples.npz
      npuc verify model.onnx model.npu --data test.npz
      npuc COMMAND --help
    """


for command in (
    compiling.compile_command,
    compiling.check,
    running.run,
    running.verify,
    artefacts.dump,
    artefacts.assemble,
    artefacts.export,
    listing.rtl,
    comparing.diff,
    comparing.compare,
    comparing.sweep,
    reporting.report,
    reporting.trace,
    reporting.explain,
    listing.targets,
    listing.operators,
    listing.completion,
    judging.quantize,
    judging.accuracy,
):
    npuc.add_command(command)
