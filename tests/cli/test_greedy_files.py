"""Files that ask for memory or time when they are read: refused by number, before they get it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from npuc.program import MANIFEST, canonical_json, sha256
from npuc.storage.records import LARGEST_FILE
from tests.cli.process import SYNTHETIC, Digits, npuc


def grown(artefact: Path, name: str, size: int) -> None:
    """Makes a file of a program as large as that, without taking room, and seals the manifest again."""
    manifest = json.loads((artefact / MANIFEST).read_bytes())
    os.truncate(artefact / name, size)
    manifest["files"][name]["bytes"] = size
    body = {key: value for key, value in manifest.items() if key != "seal"}
    (artefact / MANIFEST).write_bytes(canonical_json({**body, "seal": sha256(canonical_json(body))}))


@pytest.mark.parametrize("command", ["dump", "run", "report", "export", "assemble"])
def test_a_file_of_a_terabyte_in_an_artefact_is_not_read(copy: Path, digits: Digits, command: str) -> None:
    grown(copy, "itcm.bin", 1 << 40)
    options = {
        "run": ("--data", digits.few, "-o", copy.parent / "y.npz"),
        "report": ("-o", copy.parent / "r.html"),
        "export": ("--format", "bin", "-o", copy.parent / "bin"),
        "assemble": ("--images", copy, "-o", copy.parent / "b.npu"),
    }.get(command, ())
    npuc(command, copy, *options).refused("E509")


@pytest.mark.parametrize("command", ["dump", "export", "assemble"])
def test_the_limit_on_memory_holds_where_programs_are_read(copy: Path, command: str) -> None:
    options = {
        "export": ("--format", "bin", "-o", copy.parent / "bin"),
        "assemble": ("--images", copy, "-o", copy.parent / "b.npu"),
    }.get(command, ())
    npuc(command, copy, *options, "--memory-limit", "1000").refused("E509")


def test_raw_words_are_listed_as_far_as_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "words").touch()
    os.truncate(tmp_path / "words", 1 << 24)
    npuc("dump", tmp_path / "words", "--target", "easynpu").refused("E110")
    os.truncate(tmp_path / "words", 1 << 40)
    npuc("dump", tmp_path / "words", "--target", "easynpu").refused("E110")


@pytest.mark.parametrize(
    "text",
    ["# " + "x" * LARGEST_FILE, "[" + "a." * 30000 + "a]", "a = " + "[" * 900, "pe_rows = " + "9" * 1000],
    ids=["large", "keys in keys", "lists in lists", "a long number"],
)
def test_a_machine_file_that_takes_long_to_read_is_refused(digits: Digits, tmp_path: Path, text: str) -> None:
    (tmp_path / "m.toml").write_text(text)
    options = ("--target", "easynpu", "--machine", tmp_path / "m.toml", "-o", tmp_path / "a.npu")
    npuc("compile", *SYNTHETIC, digits.model, *options).refused("E305")


def test_a_large_input_has_fewer_synthetic_samples() -> None:
    from npuc.ir import TensorType
    from npuc.samples.loading import synthetic, varied_samples

    large = {"x": TensorType((1, 8, 1 << 10, 1 << 9), "float32")}
    assert len(synthetic(large)) == len(varied_samples(large)) == 4
    assert len(synthetic({"x": TensorType((1, 3, 224, 224), "float32")})) == 8
