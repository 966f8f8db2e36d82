"""Problems as a SARIF 2.1.0 log, which code hosts and editors show beside the file.

Source: Static Analysis Results Interchange Format (SARIF) Version 2.1.0, OASIS standard, sections 3.13 to 3.33.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from npuc import __version__
from npuc.errors import CODES, Problem

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def log(problems: Sequence[Problem], model: Path, noted: Sequence[bool] = ()) -> dict[str, Any]:
    """One run of npuc over a model: a rule for each code that occurs, a result for each problem.

    noted: which entries are notes instead of problems.
    """
    codes = sorted({problem.code for problem in problems})
    driver = {
        "name": "npuc",
        "version": __version__,
        "rules": [{"id": code, "shortDescription": {"text": CODES[code]}} for code in codes],
    }
    levels = ["note" if each else "error" for each in noted] or ["error"] * len(problems)
    results = [
        _result(problem, codes.index(problem.code), model, level)
        for problem, level in zip(problems, levels, strict=True)
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(problem: Problem, rule: int, model: Path, level: str) -> dict[str, Any]:
    """The problem at its node or tensor of the model; a model has no lines, only names."""
    said = [problem.reason]
    said += [f"Limit: {problem.limit}"] if problem.limit else []
    said += [f"Remedy: {problem.help}"] if problem.help else []
    names = [each for each in (_location(problem.node, "function"), _location(problem.tensor, "variable")) if each]
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": quote(model.as_posix())}}}
    return {
        "ruleId": problem.code,
        "ruleIndex": rule,
        "level": level,
        "message": {"text": ". ".join(said)},
        "locations": [location | ({"logicalLocations": names} if names else {})],
        "properties": problem.as_json(),
    }


def _location(name: str | None, kind: str) -> Mapping[str, str] | None:
    return {"name": name, "kind": kind} if name else None
