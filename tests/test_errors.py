"""Every error says what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuc.errors import CODES, REMEDIES, ModelError, Problem
from tests.cli.process import SYNTHETIC, npuc


@pytest.mark.parametrize("code", [code for code in CODES if code.startswith("E")])
def test_every_code_has_a_remedy(code: str) -> None:
    assert Problem(code, "a reason").as_json()["remedy"] == REMEDIES[code]
    assert f"help: {REMEDIES[code]}" in str(Problem(code, "a reason"))


def test_an_error_with_a_remedy_of_its_own_keeps_it() -> None:
    (problem,) = ModelError("E104", "two nodes write it", tensor="y", remedy="rename one").problems
    assert problem.as_json()["remedy"] == problem.help == "rename one"


def test_the_usual_remedy_names_the_target() -> None:
    assert "--target bm1684" in (Problem("E504", "a reason").on("bm1684").help or "")


def test_an_empty_model_file_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").touch()
    outcome = npuc("compile", *SYNTHETIC, tmp_path / "empty.onnx", "--target", "easynpu", "--json")
    assert outcome.code == 1 and outcome.json["errors"][0]["remedy"] == REMEDIES["E102"]
