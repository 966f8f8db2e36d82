"""`npuc dump` of an NVDLA loadable: decided by what the file holds."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.process import npuc


def test_a_loadable_is_listed_whatever_its_name(shared: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.bin"
    copy.write_bytes((shared / "nvdla" / "loadables" / "chain_small_int8.nvdla").read_bytes())
    assert npuc("dump", copy).done().splitlines()[0] == "loadable 0.7.0"
    found = json.loads(npuc("dump", copy, "--json").done())
    assert any(each["text"].startswith("CDMA.D_BANK DATA_BANK=") for each in found["instructions"])


def test_a_truncated_loadable_is_refused(shared: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model.nvdla"
    copy.write_bytes((shared / "nvdla" / "loadables" / "chain_small_int8.nvdla").read_bytes()[:3000])
    assert "the flatbuffer is damaged or truncated" in npuc("dump", copy).refused("E502")
