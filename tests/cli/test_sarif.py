"""`npuc check --format sarif`: the log's structure as sections 3.13 to 3.33 of SARIF 2.1.0 ask for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from npuc.errors import CODES
from tests.cli.process import Digits, WriteModel, npuc

TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}}
LOGICAL_KINDS = [
    "function", "member", "module", "namespace", "parameter", "resource", "returnType", "type", "variable",
    "object", "array", "property", "value", "element", "text", "attribute", "comment", "declaration", "dtd",
    "processingInstruction",
]  # fmt: skip
LOCATION = {
    "type": "object",
    "properties": {"physicalLocation": {"type": "object", "required": ["artifactLocation"],
        "properties": {"artifactLocation": {"properties": {"uri": {"type": "string",
        "format": "uri-reference"}}}}}, "logicalLocations": {"type": "array", "minItems": 1,
        "items": {"type": "object", "properties": {"name": {"type": "string"}, "kind": {"enum": LOGICAL_KINDS}}}}},
    "additionalProperties": False,
}  # fmt: skip
RESULT = {
    "type": "object",
    "required": ["message", "ruleId", "ruleIndex"],
    "properties": {
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": TEXT,
        "locations": {"type": "array", "items": LOCATION},
    },
}
DRIVER = {
    "type": "object",
    "required": ["name"],
    "properties": {"rules": {"items": {"required": ["id"], "properties": {"shortDescription": TEXT}}}},
}
RUN = {
    "type": "object",
    "required": ["tool"],
    "properties": {
        "tool": {"required": ["driver"], "properties": {"driver": DRIVER}},
        "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        "results": {"type": "array", "items": RESULT},
    },
}
LOG = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {"version": {"const": "2.1.0"}, "runs": {"type": "array", "minItems": 1, "items": RUN}},
    "additionalProperties": {"type": "string", "pattern": "^https://"},
}

REFUSED = "g (float[1,3,8,8] x) => (float[1,3,8,8] y) { a = Sin(x)\n b = Relu(a)\n y = Cos(b) }"


def _log(path: Path, code: int, *options: str) -> dict[str, Any]:
    outcome = npuc("check", path, "--target", "easynpu", "--format", "sarif", *options)
    assert outcome.code == code
    log = json.loads(outcome.out)
    jsonschema.validate(log, LOG, format_checker=jsonschema.FormatChecker())
    return log


def test_every_problem_is_a_result_at_its_node(write: WriteModel) -> None:
    path = write(REFUSED, name="two words.onnx")
    (run,) = _log(path, 1, "--strict")["runs"]
    names = [result["locations"][0]["logicalLocations"][0]["name"] for result in run["results"]]
    assert names == ["Sin_0", "Relu_1", "Cos_2"]
    first = run["results"][0]
    assert first["level"] == "error" and first["properties"]["op"] == "Sin"
    assert first["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("/two%20words.onnx")


def test_what_the_host_runs_is_a_note(write: WriteModel) -> None:
    (run,) = _log(write(REFUSED), 0)["runs"]
    assert [result["level"] for result in run["results"]] == ["note"] * 3


def test_every_rule_is_a_documented_code(write: WriteModel) -> None:
    (run,) = _log(write(REFUSED), 1, "--strict")["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert {rule["id"]: rule["shortDescription"]["text"] for rule in rules} == {
        code: CODES[code] for code in ("E201", "E203")
    }
    assert [rules[result["ruleIndex"]]["id"] for result in run["results"]] == ["E201", "E203", "E201"]


@pytest.mark.parametrize("content", [b"", b"\x08\x01nonsense"])
def test_a_file_that_is_no_model_is_a_result_without_a_node(write: WriteModel, content: bytes) -> None:
    (run,) = _log(write(content), 1)["runs"]
    assert len(run["results"]) == 1 and "logicalLocations" not in run["results"][0]["locations"][0]


def test_a_model_that_runs_has_no_results(digits: Digits) -> None:
    (run,) = _log(digits.model, 0)["runs"]
    assert run["results"] == run["tool"]["driver"]["rules"] == []
