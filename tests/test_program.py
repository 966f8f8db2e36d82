"""The artefact on disk: written whole or not at all, the same bytes every time, refused when damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npuc.errors import ArtefactError
from npuc.program import (
    EVIDENCE,
    VERSION,
    ModifiedArtefact,
    Program,
    canonical_json,
    load,
    load_evidence,
    save,
    save_files,
    sealed,
    sha256,
)
from npuc.storage import files

FILES = {"itcm.bin": bytes(range(32)), "weight.bin": b"\x80" * 16}
WEIGHT_SHA256 = "4e972baaee2ad54f78153134ef6484cd1a8e383d21582a21a481d4d214161916"
"""From sha256sum."""
PROGRAM = Program(
    {"target": "easynpu", "machine": {"name": "größer"}, "steps": []},
    FILES,
    {"reference.onnx": b"onnx", "graph.json": b"{}"},
)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    directory = tmp_path / "net.npu"
    save(PROGRAM, directory)
    return directory


def _problem(action: Callable[[], object]) -> Any:
    with pytest.raises(ArtefactError) as caught:
        action()
    (problem,) = caught.value.problems
    return problem


def _reseal(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the manifest and gives it a valid seal again."""
    manifest = json.loads((directory / "manifest.json").read_bytes())
    change(manifest)
    del manifest["seal"]
    manifest["seal"] = sha256(canonical_json(manifest))
    (directory / "manifest.json").write_bytes(canonical_json(manifest))


def test_a_program_comes_back_as_it_was_saved(saved: Path) -> None:
    found = load(saved)
    assert found.files == FILES
    assert found.target == "easynpu"
    assert found.manifest["machine"] == {"name": "größer"}
    assert not found.evidence
    assert load_evidence(saved, found) == PROGRAM.evidence


def test_the_manifest_gives_size_and_sha256_of_every_file(saved: Path) -> None:
    manifest = json.loads((saved / "manifest.json").read_bytes())
    assert set(manifest["files"]) == {each.name for each in saved.iterdir()} - {"manifest.json"}
    assert manifest["files"]["weight.bin"] == {"bytes": 16, "sha256": WEIGHT_SHA256}


def test_saving_twice_gives_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    save(PROGRAM, tmp_path / "again.npu")
    for name in ("manifest.json", *FILES, *EVIDENCE):
        assert (saved / name).read_bytes() == (tmp_path / "again.npu" / name).read_bytes()


def test_the_order_of_a_manifests_keys_does_not_matter() -> None:
    reordered = dict(reversed(list(PROGRAM.manifest.items())))
    assert sealed(reordered, FILES) == sealed(PROGRAM.manifest, FILES)


def test_an_artefact_is_replaced_without_leaving_anything_behind(saved: Path, tmp_path: Path) -> None:
    save(Program({"target": "easynpu", "steps": [1]}, {"itcm.bin": b""}), saved)
    assert load(saved).files == {"itcm.bin": b""}
    assert {each.name for each in saved.iterdir()} == {"manifest.json", "itcm.bin"}
    assert [each.name for each in tmp_path.iterdir()] == ["net.npu"]


def test_an_empty_directory_may_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    save(PROGRAM, tmp_path / "empty")
    assert load(tmp_path / "empty").files == FILES


@pytest.mark.parametrize("name", ["manifest.json", "itcm.bin"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_in_the_place_of_a_file_is_not_read(saved: Path, name: str, kind: str) -> None:
    """They may have no end."""
    (saved / name).unlink()
    if kind == "pipe":
        os.mkfifo(saved / name)
    else:
        (saved / name).symlink_to("/dev/zero")
    problem = _problem(lambda: load(saved))
    assert problem.code == ("E501" if name == "manifest.json" else "E502")
    with pytest.raises(ArtefactError):
        load(saved, allow_modified=True)


def test_missing_parents_are_made(tmp_path: Path) -> None:
    save(PROGRAM, tmp_path / "a" / "b" / "net.npu")
    assert load(tmp_path / "a" / "b" / "net.npu").files == FILES


@pytest.mark.parametrize("content", [b"precious", b"{}", b"[]", b"\xff", b'{"format": "other"}'])
def test_a_foreign_directory_is_not_replaced_without_force(tmp_path: Path, content: bytes) -> None:
    directory = tmp_path / "results"
    directory.mkdir()
    (directory / "manifest.json").write_bytes(content)
    assert _problem(lambda: save(PROGRAM, directory)).code == "E505"
    assert (directory / "manifest.json").read_bytes() == content
    save(PROGRAM, directory, force=True)
    assert load(directory).files == FILES


def test_a_file_in_the_way_is_not_replaced_without_force(tmp_path: Path) -> None:
    (tmp_path / "net.npu").write_bytes(b"precious")
    assert _problem(lambda: save(PROGRAM, tmp_path / "net.npu")).code == "E505"
    assert (tmp_path / "net.npu").read_bytes() == b"precious"
    save(PROGRAM, tmp_path / "net.npu", force=True)
    assert load(tmp_path / "net.npu").files == FILES


def test_what_stood_there_stays_if_writing_fails(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        problem = _problem(lambda: save(Program({"target": "easynpu"}, {"itcm.bin": b"new"}), saved))
    assert (problem.code, "No space left on device" in problem.reason) == ("E506", True)
    assert load(saved).files == FILES
    assert [each.name for each in tmp_path.iterdir()] == ["net.npu"]


def test_what_stood_there_stays_if_the_new_directory_cannot_take_its_place(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if Path(target) == saved and (self / "itcm.bin").read_bytes() == b"new":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        patched.setattr(files, "_exchange", lambda *_: False)
        problem = _problem(lambda: save(Program({"target": "easynpu"}, {"itcm.bin": b"new"}), saved))
    assert problem.code == "E506"
    assert load(saved).files == FILES
    assert [each.name for each in tmp_path.iterdir()] == ["net.npu"]


def test_a_parent_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert _problem(lambda: save(PROGRAM, tmp_path / "file" / "net.npu")).code == "E506"


def test_files_are_only_exported_to_a_new_or_empty_folder(tmp_path: Path) -> None:
    save_files(FILES, tmp_path / "hex")
    assert {each.name: each.read_bytes() for each in (tmp_path / "hex").iterdir()} == FILES
    assert _problem(lambda: save_files(FILES, tmp_path / "hex")).code == "E505"


def test_what_is_no_artefact_is_refused(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "absent", tmp_path / "empty", tmp_path / "file", saved / "itcm.bin"):
        problem = _problem(lambda path=path: load(path))
        assert problem.code == "E501"
        assert path.name in problem.reason


@pytest.mark.parametrize(("content", "code"), [
    (b"", "E502"), (b"{", "E502"), (b"\xff\xfe", "E502"), (b"[" * 100_000, "E502"), (b"null", "E501"),
    (b"[]", "E501"), (b"{}", "E501"), (b'{"format": "onnc"}', "E501"),
    (b'{"format": ["npuc-program"]}', "E501"), (b'{"format": "npuc-program", "version": 99}', "E501"),
    (b'{"format": "npuc-program"}', "E501"), (b'{"format": "npuc-program", "version": 2}', "E502"),
    (b'{"format": "npuc-program", "version": 2, "seal": "\\ud800", "x": "\\ud800"}', "E502"),
])  # fmt: skip
def test_a_manifest_that_is_none_is_refused(saved: Path, content: bytes, code: str) -> None:
    (saved / "manifest.json").write_bytes(content)
    assert _problem(lambda: load(saved)).code == code


def test_another_version_is_named(saved: Path) -> None:
    _reseal(saved, lambda manifest: manifest.update(version=99))
    problem = _problem(lambda: load(saved))
    assert (problem.code, problem.reason) == ("E501", "the program has format version 99")
    assert problem.limit is not None and problem.limit.startswith(f"version {VERSION},")
    assert problem.help is not None and problem.help.startswith("compile the model again")


@pytest.mark.parametrize("name", [*FILES, *EVIDENCE])
@pytest.mark.parametrize("damage", ["flip", "truncate", "extend", "remove"])
def test_a_damaged_file_is_refused_by_name(saved: Path, name: str, damage: str) -> None:
    data = (saved / name).read_bytes()
    flipped = bytes([data[0] ^ 1]) + data[1:]
    changed = {"flip": flipped, "truncate": data[:-1], "extend": data + b"\0", "remove": None}[damage]
    (saved / name).unlink()
    if changed is not None:
        (saved / name).write_bytes(changed)

    def read() -> object:
        return load_evidence(saved, load(saved)) if name in EVIDENCE else load(saved)

    problem = _problem(read)
    assert problem.code == "E502"
    assert name in problem.reason


def test_a_changed_manifest_is_refused(saved: Path) -> None:
    text = (saved / "manifest.json").read_text(encoding="utf-8")
    (saved / "manifest.json").write_text(text.replace("größer", "kleiner"), encoding="utf-8")
    problem = _problem(lambda: load(saved))
    assert (problem.code, problem.reason) == ("E502", "manifest.json is damaged: it does not match its seal")


def test_a_modified_file_is_loaded_with_a_warning_if_that_is_allowed(saved: Path) -> None:
    (saved / "itcm.bin").write_bytes(b"changed")
    with pytest.warns(ModifiedArtefact, match=r"itcm\.bin is loaded though"):
        found = load(saved, allow_modified=True)
    assert found.files["itcm.bin"] == b"changed"


def test_a_missing_file_is_refused_even_if_modifications_are_allowed(saved: Path) -> None:
    (saved / "itcm.bin").unlink()
    assert _problem(lambda: load(saved, allow_modified=True)).code == "E502"


def test_evidence_is_not_needed_to_load(saved: Path) -> None:
    for name in EVIDENCE:
        (saved / name).unlink()
    assert load(saved).files == FILES


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/hostname", "a/b", "..", ".", "", "nul\0", "manifest.json/x", "x" * 5000]
)
def test_a_manifest_cannot_name_files_outside_its_directory(saved: Path, name: str) -> None:
    (saved.parent / "secret").write_bytes(b"secret")
    entry = {"bytes": 6, "sha256": sha256(b"secret")}
    manifest = json.loads((saved / "manifest.json").read_bytes())
    manifest["files"][name] = entry
    del manifest["seal"]
    body = (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    (saved / "manifest.json").write_bytes(body)
    with pytest.warns(ModifiedArtefact):
        problem = _problem(lambda: load(saved, allow_modified=True))
    assert problem.code == "E502"


@pytest.mark.parametrize("files", [
    None, [], "itcm.bin", {"itcm.bin": None}, {"itcm.bin": {}}, {"itcm.bin": {"bytes": 32}},
    {"itcm.bin": {"sha256": sha256(FILES["itcm.bin"])}}, {"itcm.bin": {"bytes": "32", "sha256": 5}},
    {"itcm.bin": {"bytes": 32, "sha256": None}},
])  # fmt: skip
def test_a_file_table_that_is_none_is_refused(saved: Path, files: Any) -> None:
    _reseal(saved, lambda manifest: manifest.update(files=files))
    assert _problem(lambda: load(saved)).code == "E502"


def test_a_manifest_without_a_file_table_is_refused(saved: Path) -> None:
    _reseal(saved, lambda manifest: manifest.pop("files"))
    assert _problem(lambda: load(saved)).code == "E502"


def test_evidence_that_the_manifest_does_not_list_is_refused(saved: Path) -> None:
    _reseal(saved, lambda manifest: manifest["files"].pop("graph.json"))
    assert _problem(lambda: load_evidence(saved, load(saved))).code == "E502"


def test_an_artefact_may_be_moved(saved: Path, tmp_path: Path) -> None:
    shutil.move(saved, tmp_path / "elsewhere")
    assert load(tmp_path / "elsewhere").files == FILES
