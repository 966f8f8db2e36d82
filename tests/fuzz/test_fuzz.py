"""A few hundred seeded cases of every kind: results or an error by number, never anything else.

`python -m tests.fuzz KIND COUNT` runs as many as wanted, with limits on memory and time.
"""

from __future__ import annotations

import random
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from tests.fuzz import cases, mutation

COUNTS = {
    "models": 15, "samples": 30, "machines": 20, "artefacts": 15, "regions": 8, "listings": 20, "loadables": 20,
    "traces": 20,
}  # fmt: skip
FINDINGS = [
    ("models", 56), ("models", 67), ("samples", 4), ("artefacts", 49), ("artefacts", 73), ("artefacts", 1472),
    ("artefacts", 1492), ("artefacts", 10746), ("artefacts", 20007), ("artefacts", 20045), ("artefacts", 30098),
    ("artefacts", 30160), ("artefacts", 60033), ("artefacts", 60053), ("artefacts", 60235), ("artefacts", 1000311),
    ("artefacts", 1000434), ("artefacts", 1000940), ("artefacts", 1001009), ("artefacts", 3000535),
    ("artefacts", 3000697), ("artefacts", 4000214), ("artefacts", 4000586), ("artefacts", 5000004),
    ("artefacts", 5000070), ("artefacts", 5000508), ("artefacts", 8001751), ("artefacts", 8004451),
    ("artefacts", 8003431), ("artefacts", 9000311), ("artefacts", 9000755), ("regions", 20097), ("regions", 30034),
    ("regions", 30083), ("regions", 40020), ("regions", 60040),
]  # fmt: skip
"""Cases that once ended in a traceback, or in all memory."""


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    """No case takes all of the machine's memory."""
    if sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (3 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("kind", COUNTS)
def test_a_mutated_file_gives_results_or_an_error_by_number(tmp_path: Path, kind: str) -> None:
    assert COUNTS.keys() == cases.KINDS.keys()
    found = {cases.outcome(kind, seed, tmp_path / str(seed)) for seed in range(COUNTS[kind])}
    assert found > {"done"}, "mutations must neither leave everything sound nor break everything"


@pytest.mark.parametrize(("kind", "seed"), FINDINGS)
def test_what_was_found_once_stays_mended(tmp_path: Path, kind: str, seed: int) -> None:
    cases.outcome(kind, seed, tmp_path / "case")


def test_the_harness_lets_no_other_exception_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(chance: random.Random, folder: Path) -> None:
        raise IndexError

    monkeypatch.setitem(cases.KINDS, "broken", broken)
    with pytest.raises(IndexError):
        cases.outcome("broken", 1, tmp_path / "case")


def test_mutations_change_something_and_are_the_same_for_the_same_seed() -> None:
    model, text = cases.model(), "Conv Ho=1 Wo=2\nhalt"
    value = {"a": [1, 2, {"b": "c"}], "d": 1.5}
    for mutate in (
        lambda chance: mutation.changed_model(model, chance),
        lambda chance: mutation.changed_json(value, chance),
        lambda chance: mutation.changed_lines(text, chance),
        lambda chance: mutation.changed_bytes(bytes(range(100)), chance),
    ):
        first, second = ([repr(mutate(random.Random(seed))) for seed in range(20)] for _ in range(2))
        assert first == second and len(set(first)) > 10
    onnx.checker.check_model(model)
