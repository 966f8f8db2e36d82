"""--calibration-cache: the same bytes with and without, told what was found, nothing stale or damaged taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.process import SYNTHETIC, Digits, npuc


def _compiled(digits: Digits, output: Path, cache: Path | None, *more: object) -> tuple[dict[str, bytes], str]:
    """The program's files by name, and what was said."""
    options = () if cache is None else ("--calibration-cache", cache)
    common = ("--target", "nvdla-small", "--calibration", digits.few, "-o", output, "-v")
    printed = npuc("compile", digits.model, *common, *options, *more)
    printed.done()
    return {each.name: each.read_bytes() for each in output.iterdir()}, printed.err


@pytest.mark.parametrize("folder", [False, True])
def test_a_second_compilation_finds_all_and_gives_the_same_bytes(
    digits: Digits, tmp_path: Path, folder: bool
) -> None:
    cache = tmp_path / "cache.npz"
    if folder:
        cache = tmp_path / "caches"
        cache.mkdir()
    plain, said = _compiled(digits, tmp_path / "a.npu", None)
    assert "cache" not in said
    first, said = _compiled(digits, tmp_path / "b.npu", cache)
    assert ": 0 of " in said
    again, said = _compiled(digits, tmp_path / "c.npu", cache)
    assert ": 1 of 1 calibrations found" in said
    assert plain == first == again
    assert len(list(tmp_path.rglob("*.npz"))) == 1


def test_another_set_of_data_is_not_confused_with_it(digits: Digits, tmp_path: Path) -> None:
    cache = tmp_path / "cache.npz"
    _compiled(digits, tmp_path / "a.npu", cache)
    with np.load(digits.few) as archive:
        np.savez(tmp_path / "half.npz", **{name: archive[name][::2] for name in archive.files})
    more = ("--calibration", tmp_path / "half.npz")
    other, said = _compiled(digits, tmp_path / "b.npu", cache, *more)
    assert "is of another model, other data or another npuc: not used" in said
    alone, _ = _compiled(digits, tmp_path / "c.npu", None, *more)
    assert other == alone


def test_a_damaged_cache_is_told_and_written_anew(digits: Digits, tmp_path: Path) -> None:
    cache = tmp_path / "cache.npz"
    plain, _ = _compiled(digits, tmp_path / "a.npu", cache)
    whole = cache.read_bytes()
    for content in (
        whole[:1000],
        b"",
        whole[:5000] + bytes(each ^ 255 for each in whole[5000:5200]) + whole[5200:],
    ):
        cache.write_bytes(content)
        found, said = _compiled(digits, tmp_path / "b.npu", cache, "--force")
        assert "is damaged: not used" in said
        assert found == plain
        assert cache.read_bytes() == whole
    with np.load(cache) as archive:
        arrays = dict(archive)
    name = next(each for each in arrays if each.endswith("/widths"))
    np.savez(cache, **{**arrays, name: -arrays[name]})
    found, said = _compiled(digits, tmp_path / "b.npu", cache, "--force")
    assert "is damaged: not used" in said
    assert found == plain


def test_a_cache_that_cannot_be_written_is_an_error(digits: Digits, tmp_path: Path) -> None:
    cache = tmp_path / "no" / "such" / "folder.npz"
    printed = npuc(
        "compile",
        *SYNTHETIC,
        digits.model,
        "--target",
        "easynpu",
        "-o",
        tmp_path / "p",
        "--calibration-cache",
        cache,
        "--json",
    )
    assert printed.code == 1
    assert printed.json["errors"][0]["code"] == "E506"
    assert not (tmp_path / "p").exists()


def test_quantize_shares_what_compile_has_found(digits: Digits, tmp_path: Path) -> None:
    cache = tmp_path / "cache.npz"
    common = ("--target", "easynpu", "--calibration", digits.few)
    npuc("quantize", digits.model, "-o", tmp_path / "plain.onnx", *common).done()
    npuc("compile", digits.model, "-o", tmp_path / "p", *common, "--calibration-cache", cache).done()
    before = cache.read_bytes()
    npuc("quantize", digits.model, "-o", tmp_path / "q.onnx", *common, "--calibration-cache", cache).done()
    assert cache.read_bytes() == before
    assert (tmp_path / "q.onnx").read_bytes() == (tmp_path / "plain.onnx").read_bytes()


def test_a_file_of_another_kind_is_not_replaced(digits: Digits, tmp_path: Path) -> None:
    model, data = digits.model.read_bytes(), digits.few.read_bytes()
    for name, content in (("net.onnx", model), ("data.npz", data), ("note.txt", b"mine")):
        (tmp_path / name).write_bytes(content)
        arguments = ("--target", "easynpu", "-o", tmp_path / "p", "--calibration-cache", tmp_path / name)
        assert "is not a calibration cache" in npuc("compile", *SYNTHETIC, digits.model, *arguments).refused(
            "E505"
        )
        assert (tmp_path / name).read_bytes() == content
