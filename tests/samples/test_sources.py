"""Folders and patterns of .npz files: the same samples as one file, no more memory, clear refusals."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from npuc.ir import TensorType
from npuc.samples import streams
from npuc.samples.loading import load
from npuc.samples.sources import files_of
from npuc.samples.streams import Streamed
from tests.files import arrays, split

TYPES = {"input": TensorType((1, 3, 4))}
VALUES = np.random.default_rng(0).normal(3, 2, (23, 3, 4)).astype(np.float32)


def test_a_folder_and_a_pattern_are_their_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = ("b.npz", "a10.npz", "a2.npz", "B.npz")
    for name in (*names, ".hidden.npz", "read.me"):
        (tmp_path / name).touch()
    (tmp_path / "c.npz").mkdir()
    wanted = [tmp_path / name for name in ("B.npz", "a10.npz", "a2.npz", "b.npz")]
    assert files_of([tmp_path]) == wanted
    assert files_of([tmp_path / "*.npz"]) == wanted
    assert files_of([tmp_path / "a?.npz", tmp_path / "a10.npz"]) == [tmp_path / "a2.npz", tmp_path / "a10.npz"]


def test_a_file_or_folder_whose_name_looks_like_a_pattern_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run[1]"
    folder.mkdir()
    (folder / "a*.npz").touch()
    (folder / "ab.npz").touch()
    assert files_of([folder / "a*.npz"]) == [folder / "a*.npz"]
    assert files_of([folder]) == [folder / "a*.npz", folder / "ab.npz"]


@pytest.mark.parametrize("large", [1 << 26, 100])
@pytest.mark.parametrize("order", ["C", "F"])
def test_many_files_are_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int, order: str) -> None:
    monkeypatch.setattr(streams, "LARGE", large)
    folder = tmp_path / "parts"
    split(folder, VALUES, (5, 1, 9, 8), y=np.arange(23))
    for path in folder.iterdir():
        found = arrays(path)
        np.savez(path, x=np.asarray(found["x"], order=order), y=found["y"])  # type: ignore[call-overload]
    np.savez(tmp_path / "one.npz", x=VALUES, y=np.arange(23))
    many, one = load([folder], TYPES), load([tmp_path / "one.npz"], TYPES)
    assert many.labels is not None and many.labels.tolist() == list(range(23))
    for size in (1, 4, 7, 32):
        for mine, other in zip(many.batches(size), one.batches(size), strict=True):
            np.testing.assert_array_equal(mine.inputs["input"], other.inputs["input"])
    np.testing.assert_array_equal(np.stack([feed["input"] for feed in many.feeds()])[:, 0], VALUES)


def test_memory_does_not_grow_with_the_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGE", 1 << 20)
    image = np.random.default_rng(1).normal(1, 1, (4, 64, 64)).astype(np.float32)
    types = {"x": TensorType((1, 64, 64))}
    peaks: list[int] = []
    for count in (8, 64):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            np.savez(folder / f"{number:03}.npz", x=image + number)
        tracemalloc.start()
        samples = load([folder], types)
        assert sum(float(feed["x"].sum()) > 0 for feed in samples.feeds()) == 4 * count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert 64 * image.nbytes >= 4 << 20  # what holding all of them would take
    assert max(peaks) < 2 << 20


def test_a_share_of_memory_is_held_by_each_of_many_files(tmp_path: Path) -> None:
    folder = split(tmp_path / "parts", VALUES, (12, 11))
    assert not isinstance(load([folder], TYPES).inputs, Streamed)
