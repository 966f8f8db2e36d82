"""A TOML file overrides any number of the machine; what cannot be is refused with E305."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuc.errors import DoesNotFit
from npuc.targets.bm1684.machine.parameters import load


def test_a_file_overrides_single_numbers(tmp_path: Path) -> None:
    path = tmp_path / "half.toml"
    path.write_text("npus = 32\n", encoding="utf-8")
    machine = load(str(path))
    assert (machine.name, machine.npus, machine.local_bytes) == ("half", 32, 524_288)


@pytest.mark.parametrize(("text", "reason"), [
    ("npus = 0", "npus = 0"), ("npu = 4", "unknown parameter 'npu'"),
    ("local_bytes = 1000", "local_bytes = 1000 in 8 banks"),
    ("local_bytes = 16777216\nnpus = 512", "npus \\* local_bytes"), ("lanes = 'many'", "lanes = 'many'"),
    ("npus =", "cannot be read"),
])  # fmt: skip
def test_a_machine_that_cannot_be_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DoesNotFit, match=reason):
        load(str(path))


def test_an_unknown_machine_is_refused_by_name() -> None:
    with pytest.raises(DoesNotFit, match="no such machine"):
        load("bm1685")
