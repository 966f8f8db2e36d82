"""Folders and patterns of .npz files as calibration and data: the bytes of one file, clear refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import npuc as package
from npuc.errors import DataError, NpucError
from npuc.samples import streams
from tests.cli.process import Digits, WriteModel, npuc
from tests.files import arrays, split


def test_only_the_origin_of_ranges_tells_how_many_files_calibrated_an_artefact(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LARGE", 1 << 12)
    data = arrays(digits.calibration)
    (key,) = data
    values = data[key]
    folder = split(tmp_path / "parts", values, (40, 1, 60, len(values) - 101))
    for number, calibration in enumerate((digits.calibration, folder, folder / "*.npz")):
        made = tmp_path / f"{number}.npu"
        command = ("compile", digits.model, "--target", "easynpu", "-o", made)
        npuc(*command, "--calibration", calibration).done()
        assert compiled_bytes(made) == compiled_bytes(tmp_path / "0.npu")
    package.compile(str(digits.model), "easynpu", calibration=folder).save(tmp_path / "api.npu")
    assert compiled_bytes(tmp_path / "api.npu") == compiled_bytes(tmp_path / "0.npu")


def compiled_bytes(directory: Path) -> dict[str, bytes]:
    """The files; of the manifest all but the origin of ranges, and the seal."""
    found = {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }
    manifest = json.loads(found["manifest.json"])
    assert manifest.pop("ranges")["samples"] and manifest.pop("seal")
    return {**found, "manifest.json": json.dumps(manifest).encode()}


def test_quantize_compare_sweep_and_run_take_folders_and_patterns(digits: Digits, tmp_path: Path) -> None:
    values = next(iter(arrays(digits.calibration).values()))[:12]
    folder = split(tmp_path / "parts", values, (5, 7))
    np.savez(tmp_path / "one.npz", x=values)
    target = ("--target", "easynpu")
    for number, each in enumerate((tmp_path / "one.npz", folder, folder / "0*.npz")):
        npuc("quantize", digits.model, "-o", tmp_path / f"{number}.onnx", *target, "--calibration", each).done()
        npuc("run", digits.program, "--data", each, "-o", tmp_path / f"{number}.npz").done()
    assert len({(tmp_path / f"{number}.onnx").read_bytes() for number in range(3)}) == 1
    assert len({(tmp_path / f"{number}.npz").read_bytes() for number in range(3)}) == 1
    commands = [
        ("compare", digits.model, *target, "--data", digits.few, "--json"),
        ("sweep", digits.model, *target, "--grid", "pe_rows=2", "--jobs", 1, "--json"),
    ]
    for command in commands:
        assert len({npuc(*command, "--calibration", each).done() for each in (tmp_path / "one.npz", folder)}) == 1


def test_the_calibration_cache_is_of_the_files_in_a_folder(digits: Digits, tmp_path: Path) -> None:
    values = next(iter(arrays(digits.calibration).values()))[:12]
    folder, cache = split(tmp_path / "parts", values, (5, 7)), tmp_path / "c.npz"
    command = ("quantize", digits.model, "-o", tmp_path / "q.onnx", "--target", "easynpu", "-O0")
    options = ("--calibration", folder, "--calibration-cache", cache)
    npuc(*command, *options).done()
    first = (tmp_path / "q.onnx").read_bytes()
    np.savez(folder / "001.npz", x=values[5:] // 3)
    assert "other data" in npuc(*command, *options).err
    assert (tmp_path / "q.onnx").read_bytes() != first


@pytest.mark.parametrize("kind", ["folder", "pattern"])
def test_nothing_found_is_refused(digits: Digits, tmp_path: Path, kind: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.npy").touch()
    given = tmp_path / "empty" / ("" if kind == "folder" else "*.npz")
    command = ("compile", digits.model, "--target", "easynpu", "-o", tmp_path / "o.npu", "--calibration", given)
    said = npuc(*command).refused("E401")
    assert ("has no .npz files" if kind == "folder" else "no file matches") in said
    assert not (tmp_path / "o.npu").exists()
    with pytest.raises(DataError, match=r"no \.npz files|no file matches"):
        package.compile(str(digits.model), "easynpu", calibration=given)


def test_files_that_disagree_are_refused_by_name(tmp_path: Path, write: WriteModel) -> None:
    model = write("""g (float[1,2,4,4] a, float[1,2,4,4] b) => (float[1,2,4,4] y) { y = Add(a, b) }""")
    folder = tmp_path / "parts"
    folder.mkdir()
    good = np.ones((3, 2, 4, 4), np.float32)
    np.savez(folder / "a.npz", a=good, b=good)
    for bad, code, said in (
        ({"a": good}, "E401", "b.npz' has no array 'b'"),
        ({"a": good, "b": good[:2]}, "E402", "b.npz' has a different number of samples"),
        ({"a": good, "b": good[:, :, :2]}, "E402", "b.npz' has float32 [3, 2, 2, 4]"),
        ({"a": good[:0], "b": good[:0]}, "E402", "b.npz' has no samples"),
        ({"a": good, "b": good * np.nan}, "E402", "not finite"),
    ):
        np.savez(folder / "b.npz", **bad)
        with pytest.raises(NpucError) as caught:
            package.compile(str(model), "easynpu", calibration=str(folder / "*.npz"))
        assert caught.value.problems[0].code == code and said in str(caught.value)
    (folder / "b.npz").write_bytes(b"PK\3\4 and no more")
    with pytest.raises(DataError, match="cannot be read"):
        package.compile(str(model), "easynpu", calibration=folder)
