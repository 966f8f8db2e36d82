"""One command in process, through the console script's entry point; and the program that most tests look at."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from npuc.cli import main

SYNTHETIC = ("--calibration", "synthetic")
"""For programs whose accuracy on data is not the subject."""
PROBLEM = {"code", "node", "op", "tensor", "reason", "limit", "remedy"}


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout as exactly one JSON object."""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    def done(self) -> str:
        """Stdout of a command that succeeded."""
        assert self.code == 0, self.err
        return self.out

    def refused(self, code: str) -> str:
        """The one clear block of a command that refused: nothing else was printed."""
        assert (self.code, self.out) == (1, ""), (self.code, self.out, self.err)
        blocks = [line for line in self.err.splitlines() if not line.startswith("  ")]
        assert [line[: len(code) + 7] for line in blocks] == [f"error[{code}]"], self.err
        return self.err

    def usage(self) -> str:
        """The message of a usage error."""
        assert (self.code, self.out) == (2, ""), (self.code, self.out, self.err)
        assert "Traceback" not in self.err
        return self.err


def npuc(*arguments: object) -> Outcome:
    """The outcome of one command."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["npuc", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return Outcome(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def compiled(model: Path, output: Path, *options: object) -> Outcome:
    """The outcome of compiling for EasyNPU."""
    samples = () if "--calibration" in options else SYNTHETIC
    return npuc("compile", model, "--target", "easynpu", *samples, "-o", output, *options)


@dataclass(frozen=True)
class Digits:
    """The trained model with its data, four of the test's samples, and its program (tests change copies only)."""

    model: Path
    calibration: Path
    test: Path
    few: Path
    program: Path


WriteModel = Callable[..., Path]
"""Writes a model to a file: from ONNX's textual form, a ModelProto, or raw bytes."""
