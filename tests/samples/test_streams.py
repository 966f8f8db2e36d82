"""Large .npz files are read block by block: the same samples, no more memory, damage refused by name."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npuc.errors import DataError
from npuc.ir import Array, TensorType
from npuc.samples import streams
from npuc.samples.loading import Samples, load
from npuc.samples.streams import Member, Streamed

TYPES = {"input": TensorType((1, 3, 4))}
VALUES = np.random.default_rng(0).standard_normal((50, 3, 4)).astype(np.float16)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of more than 100 bytes are large here."""
    monkeypatch.setattr(streams, "LARGE", 100)


@pytest.fixture(params=[np.savez, np.savez_compressed], ids=["stored", "compressed"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of these arrays in either form."""

    def write(name: str = "a.npz", **arrays: Any) -> Path:
        request.param(tmp_path / name, **arrays)
        return tmp_path / name

    return write


def _values(samples: Samples) -> Array:
    return np.stack([feed["input"] for feed in samples.feeds()])


def test_feeds_batches_and_first_samples_are_those_of_arrays_in_memory(saved: Callable[..., Path]) -> None:
    path = saved(x=VALUES, y=np.arange(50))
    found = load([path], TYPES)
    assert isinstance(found.inputs, Streamed)
    assert len(found) == 50
    wanted = VALUES.astype(np.float32).reshape(50, 1, 3, 4)
    np.testing.assert_array_equal(_values(found), wanted)
    np.testing.assert_array_equal(_values(found.first(7)), wanted[:7])
    np.testing.assert_array_equal(found.inputs["input"], wanted)
    batches = list(found.batches(16))
    assert [len(each) for each in batches] == [16, 16, 16, 2]
    np.testing.assert_array_equal(np.concatenate([each.inputs["input"] for each in batches]), wanted)
    assert [each.labels.tolist() for each in batches if each.labels is not None][3] == [48, 49]


def test_files_are_joined_whether_large_or_not(saved: Callable[..., Path]) -> None:
    paths = [saved(x=VALUES), saved("b.npz", x=VALUES[:2]), saved("c.npz", x=VALUES[:9])]
    found = load(paths, TYPES)
    assert len(found) == 61
    wanted = np.concatenate([VALUES, VALUES[:2], VALUES[:9]]).astype(np.float32).reshape(61, 1, 3, 4)
    np.testing.assert_array_equal(_values(found), wanted)
    np.testing.assert_array_equal(_values(found.first(51)), wanted[:51])
    assert [len(each) for each in found.batches(20)] == [20, 20, 20, 1]


def test_no_more_is_read_at_once_than_a_block(saved: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read = Member._read

    def counted(self: Member, file: Any, shape: tuple[int, ...]) -> Array:
        sizes.append(shape[0])
        return read(self, file, shape)

    monkeypatch.setattr(Member, "_read", counted)
    found = load([saved(x=VALUES)], TYPES)
    assert not sizes
    assert len(list(found.first(5).feeds())) == 5
    assert sizes == [4, 4]
    list(found.feeds())
    assert sizes[2:] == [4] * 12 + [2]


def test_values_that_are_not_finite_are_refused_where_they_are_read(saved: Callable[..., Path]) -> None:
    values = VALUES.copy()
    values[33, 1, 1] = np.inf
    found = load([saved(x=values)], TYPES)
    with pytest.raises(DataError, match="not finite") as caught:
        list(found.feeds())
    assert [each.code for each in caught.value.problems] == ["E402"]


def test_a_wrong_shape_is_refused_before_anything_is_read(saved: Callable[..., Path]) -> None:
    with pytest.raises(DataError) as caught:
        load([saved(x=VALUES[:, :2])], TYPES)
    assert [each.code for each in caught.value.problems] == ["E402"]


def test_a_damaged_member_is_refused(saved: Callable[..., Path]) -> None:
    path = saved(x=VALUES)
    with zipfile.ZipFile(path) as archive:
        info = archive.infolist()[0]
    content = bytearray(path.read_bytes())
    middle = info.header_offset + 60 + info.compress_size // 2
    content[middle : middle + 40] = bytes(each ^ 0x5A for each in content[middle : middle + 40])
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(load([path], TYPES).feeds())
    assert [each.code for each in caught.value.problems] == ["E401"]
    assert "damaged" in caught.value.problems[0].reason


def test_an_array_in_fortran_s_order_is_read_whole(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", x=np.asfortranarray(VALUES))
    found = load([tmp_path / "f.npz"], TYPES)
    assert not isinstance(found.inputs, Streamed)
    np.testing.assert_array_equal(_values(found)[:, 0], VALUES.astype(np.float32))


def test_a_part_is_what_slices_of_an_array_are(saved: Callable[..., Path]) -> None:
    paths = [saved(x=VALUES), saved("b.npz", x=VALUES[:2]), saved("c.npz", x=VALUES[3:12])]
    found = load(paths, TYPES)
    wanted = np.concatenate([VALUES, VALUES[:2], VALUES[3:12]]).astype(np.float32).reshape(61, 1, 3, 4)
    for first, stop in ((0, 61), (7, 33), (49, 53), (50, 51), (52, 61), (60, 99), (61, 61)):
        part = found.part(first, stop)
        assert len(part) == len(wanted[first:stop])
        if len(part):
            np.testing.assert_array_equal(_values(part), wanted[first:stop])
            batches = [each.inputs["input"] for each in part.batches(4)]
            assert [len(each) for each in batches[:-1]] == [4] * (len(batches) - 1)
            np.testing.assert_array_equal(np.concatenate(batches), wanted[first:stop])
    np.testing.assert_array_equal(_values(found.part(5, 40).part(3, 20).first(9)), wanted[8:17])


def test_damage_before_a_part_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=VALUES)
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz"):
        list(load([path], TYPES).part(40, 50).feeds())
