"""Damage to a program: named and refused; with --allow-modified loaded, and never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npuc.program import sealed
from npuc.system import confinement
from tests.cli.process import Digits, compiled, npuc

NEEDED = ("manifest.json", "itcm.bin", "weight.bin")
EVIDENCE = ("reference.onnx", "graph.json")


def damage(path: Path, kind: str) -> None:
    data = path.read_bytes()
    match kind:
        case "missing":
            path.unlink()
        case "a folder":
            path.unlink()
            path.mkdir()
        case "empty":
            path.write_bytes(b"")
        case "truncated":
            path.write_bytes(data[: len(data) // 2])
        case "longer":
            path.write_bytes(data + b"x")
        case _:
            middle = len(data) // 2
            path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


KINDS = ["missing", "a folder", "empty", "truncated", "longer", "a flipped bit"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NEEDED)
def test_damage_is_refused_by_name(digits: Digits, copy: Path, tmp_path: Path, name: str, kind: str) -> None:
    damage(copy / name, kind)
    (tmp_path / "listing").write_text(npuc("dump", digits.program).done())
    for command in (
        ("run", copy, "--data", digits.few, "-o", tmp_path / "y.npz"),
        ("verify", digits.model, copy, "--data", digits.few),
        ("dump", copy),
        ("export", copy, "--format", "bin", "-o", tmp_path / "ex"),
        ("assemble", tmp_path / "listing", "-o", tmp_path / "o", "--images", copy),
    ):
        outcome = npuc(*command)
        assert name in outcome.refused("E501" if "E501" in outcome.err else "E502")
    assert {path.name for path in tmp_path.iterdir()} == {"copy.npu", "listing"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EVIDENCE)
def test_damaged_evidence_stops_verification_only(
    digits: Digits, copy: Path, tmp_path: Path, name: str, kind: str
) -> None:
    damage(copy / name, kind)
    assert name in npuc("verify", digits.model, copy, "--data", digits.few).refused("E502")
    npuc("run", copy, "--data", digits.few, "-o", tmp_path / "y.npz").done()
    npuc("dump", copy).done()


def test_a_damaged_artefact_is_replaced_but_not_one_without_a_manifest(digits: Digits, copy: Path) -> None:
    damage(copy / "itcm.bin", "truncated")
    compiled(digits.model, copy).done()
    damage(copy / "manifest.json", "missing")
    compiled(digits.model, copy).refused("E505")


def test_a_program_of_an_unknown_target_is_refused(digits: Digits, copy: Path, tmp_path: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "target": "abacus"}))
    command = ("run", copy, "--data", digits.few, "-o", tmp_path / "y.npz", "--allow-modified")
    outcome = npuc(*command)
    assert outcome.code == 1 and "error[E501] the program is for 'abacus'" in outcome.err
    assert "help: install the package that adds this target" in outcome.err


def paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something can be changed in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield (*at, key)
        yield from paths(each, (*at, key))


def changed(manifest: Any, at: tuple[Any, ...], value: object) -> Any:
    copied = json.loads(json.dumps(manifest))
    parent = copied
    for key in at[:-1]:
        parent = parent[key]
    parent[at[-1]] = value
    return copied


@pytest.fixture
def unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime runs in this process: what it reads is sound, and forks took half of the time."""
    monkeypatch.setattr(confinement, "AVAILABLE", False)


@pytest.mark.usefixtures("unconfined")
@pytest.mark.filterwarnings("ignore::npuc.program.ModifiedArtefact")
def test_whatever_stands_in_a_modified_manifest_there_is_no_traceback(
    digits: Digits, copy: Path, tmp_path: Path
) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    places = [at for at in paths(manifest) if at[0] not in ("seal", "report")]
    random = np.random.default_rng(11)
    for _ in range(15):
        at = places[random.integers(len(places))]
        value = (None, "text", -1, 1 << 40, [], {}, 1.5, 0)[random.integers(8)]
        (copy / "manifest.json").write_text(json.dumps(changed(manifest, at, value)))
        for command in (
            ("verify", digits.model, copy, "--data", digits.few),
            ("dump", copy),
            ("export", copy, "--format", "readmemh", "-o", tmp_path / "ex"),
        ):
            outcome = npuc(*command, "--allow-modified")
            assert outcome.code == 0 or "error[E" in outcome.err or "MISMATCH" in outcome.out, (at, value, outcome)
        shutil.rmtree(tmp_path / "ex", ignore_errors=True)


@pytest.mark.parametrize("key", ["outputs", "instructions"])
def test_what_a_manifest_lacks_is_named(digits: Digits, copy: Path, key: str) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    files = {name: (copy / name).read_bytes() for name in manifest["files"]}
    (copy / "manifest.json").write_bytes(sealed({**manifest, key: []}, files))
    command = {
        "outputs": ("verify", digits.model, copy, "--data", digits.few),
        "instructions": ("dump", copy, "--image", "weight.bin"),
    }[key]
    assert f"manifest.json is damaged: {key}" in npuc(*command).refused("E502")


@pytest.mark.usefixtures("unconfined")
def test_whatever_stands_in_modified_words_there_is_no_traceback(digits: Digits, copy: Path) -> None:
    words, random = (copy / "itcm.bin").read_bytes(), np.random.default_rng(12)
    for _ in range(12):
        damaged = bytearray(words)
        damaged[random.integers(len(words))] = random.integers(256)
        (copy / "itcm.bin").write_bytes(damaged)
        outcome = npuc("verify", digits.model, copy, "--data", digits.few, "--allow-modified")
        assert outcome.code == 0 or "error[E" in outcome.err or "MISMATCH" in outcome.out, outcome
        outcome = npuc("dump", copy / "itcm.bin")
        assert outcome.code == 0 or outcome.err.startswith("error[E")


def test_a_listing_with_other_extents_is_refused_or_differs(digits: Digits, tmp_path: Path) -> None:
    text = npuc("dump", digits.program).done()
    for field, value in (("Ho", 4), ("Co", 8), ("Wo", 9), ("Hi", 4), ("Ci", 15)):
        (tmp_path / "listing").write_text(
            "\n".join(
                " ".join(f"{field}={value}" if word.startswith(f"{field}=") else word for word in line.split(" "))
                for line in text.splitlines()
            )
        )
        command = ("assemble", tmp_path / "listing", "-o", tmp_path / "o", "--images", digits.program)
        assembled = npuc(*command)
        if assembled.code:
            assert assembled.err.startswith("error[E")
            continue
        outcome = npuc("verify", digits.model, tmp_path / "o", "--data", digits.few)
        assert outcome.code == 1 and ("error[E" in outcome.err or "MISMATCH" in outcome.out)
