"""One command in process, through the console script's entry point; and the program that most tests look at."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

from npuc.cli import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
SYNTHETIC = ("--calibration", "synthetic")
"""For programs whose accuracy on data is not the subject."""
PROBLEM = {"code", "node", "op", "tensor", "reason", "limit", "remedy"}


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    command: str
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout as exactly one JSON object, which follows the command's schema; without the version."""
        found = json.loads(self.out)
        refused = found.keys() == {"version", "status", "errors"} and found["status"] == "error"
        _expect_valid(found, "error" if refused else self.command)
        return {key: each for key, each in found.items() if key != "version"}

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
    return Outcome(
        str(arguments[0]) if arguments else "", int(ended.value.code or 0), out.getvalue(), err.getvalue()
    )


@cache
def _schemas() -> Registry[Any]:
    """The schemas that the package ships."""
    found = [
        json.loads((DOCS / name).read_text("utf-8")) for name in ("output-schema.json", "program-schema.json")
    ]
    return Registry().with_resources((each["$id"], Resource.from_contents(each)) for each in found)


def _expect_valid(report: Any, name: str) -> None:
    """Raises AssertionError for a report that this definition does not describe."""
    schema = {"$ref": f"output-schema.json#/$defs/{name}"}
    error = best_match(Draft202012Validator(schema, registry=_schemas()).iter_errors(report))
    if error is not None:
        told = (f"{[*each.absolute_path]}: {each.message[:300]}" for each in (error, *(error.context or ())))
        raise AssertionError("\n".join((f"{name} --json does not follow docs/output-schema.json", *told)))


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
