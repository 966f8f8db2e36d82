"""benchmarks/history.py: what counts as a regression, and a line for each release."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

import npuc
from tests.files import script

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "history.py"


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with a file of its own."""
    module = script("benchmarks/history.py")
    monkeypatch.setattr(module, "FILE", tmp_path / "history.json")
    monkeypatch.setattr(module, "_commit", lambda: "abc")
    return module


def test_the_file_in_the_repository_is_read_and_has_ratios(history: ModuleType) -> None:
    lines = json.loads(SCRIPT.with_name("history.json").read_text(encoding="utf-8"))
    assert lines and all(history.Entry(**each).ratios for each in lines)
    assert len({(each["benchmark"], each["version"]) for each in lines}) == len(lines)


def test_a_line_a_release_is_kept_and_compared_with_the_release_before(
    history: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    history.follow("b", {"x": 9.0}, None)
    assert history.entries() == []
    history.follow("b", {"x": 1.0, "y": 2.0}, "append", "a quiet machine")
    history.follow("other", {"x": 0.1}, "append")
    monkeypatch.setattr(history, "__version__", "99.0")
    history.follow("b", {"x": 1.1, "y": 2.0}, "append")
    assert f"have grown since {npuc.__version__} (abc, " in capsys.readouterr().err
    history.follow(
        "b", {"x": 1.3, "y": 2.0}, "append"
    )  # compared with the release before, not with the line it replaces
    assert capsys.readouterr().err.splitlines()[1:] == ["x: 1.300, before 1.000 (+30 %)"]
    found = [(each.benchmark, each.version, each.ratios["x"]) for each in history.entries()]
    assert found == [("b", npuc.__version__, 1.0), ("other", npuc.__version__, 0.1), ("b", "99.0", 1.3)]
    assert history.entries()[0].note == "a quiet machine"


def test_comparing_writes_nothing_and_fails_for_what_has_grown(history: ModuleType) -> None:
    history.follow("b", {"x": 1.0}, "append")
    before = history.FILE.read_bytes()
    history.follow("b", {"x": 1.2, "new": 5.0}, "compare")
    with pytest.raises(SystemExit) as ended:
        history.follow("b", {"x": 1.21}, "compare")
    assert ended.value.code == 1
    assert history.FILE.read_bytes() == before
