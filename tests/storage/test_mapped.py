"""Values that lie in files of a temporary folder."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from npuc.storage import mapped
from npuc.storage.mapped import HEAVY, FilePlace, Growing, Pieces, append, keep, link, map_copy, place_of, release

VALUES = np.linspace(-7, 3, HEAVY, dtype=np.float32).reshape(4, 8, -1)


def in_place(place: FilePlace, count: int) -> bytes:
    """Bytes at a place of a file."""
    with place.file.open("rb") as file:
        file.seek(place.offset)
        return file.read(count)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_what_is_kept_has_the_same_values_in_a_file(order: tuple[int, ...]) -> None:
    values = VALUES.transpose(order)
    found = keep(values)
    np.testing.assert_array_equal(found, values)
    place = place_of(found)
    assert place is not None and in_place(place, values.nbytes) == values.tobytes()


def test_a_part_in_c_order_has_its_own_place_and_no_other_has_one() -> None:
    found = keep(VALUES)
    part = found[2, 3:].reshape(-1)
    place = place_of(part)
    assert place is not None and in_place(place, part.nbytes) == VALUES[2, 3:].tobytes()
    assert place_of(found.transpose(1, 0, 2)) is place_of(VALUES) is place_of(found + 0) is None


def test_light_values_and_kept_ones_are_not_kept_again() -> None:
    few, found = np.zeros(3), keep(VALUES)
    assert keep(few) is few
    assert keep(found) is found and keep(part := found[1:]) is part


def test_a_file_goes_with_its_values() -> None:
    found = keep(VALUES)
    place = place_of(found)
    assert place is not None and place.file.exists()
    del found
    gc.collect()
    assert not place.file.exists()


def test_values_are_there_when_their_memory_was_given_back() -> None:
    found = keep(VALUES)
    for give_back in (release, mapped.trim):
        give_back()
        np.testing.assert_array_equal(found, VALUES)


def test_without_room_values_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapped, "folder", full)
    assert keep(VALUES) is VALUES
    (tmp_path / "data").write_bytes(b"abc" + VALUES.tobytes())
    np.testing.assert_array_equal(map_copy(tmp_path / "data", 3, VALUES.nbytes, "<f4"), VALUES.ravel())


def test_a_part_of_a_file_is_copied_once_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"abc" + VALUES.tobytes())
    first, again = (map_copy(path, 3, VALUES.nbytes, "<f4") for _ in range(2))
    np.testing.assert_array_equal(first, VALUES.ravel())
    assert place_of(first) == place_of(again) is not None
    path.write_bytes(b"abc" + (VALUES + 1).tobytes())
    os.utime(path, ns=(1, 1))
    np.testing.assert_array_equal(map_copy(path, 3, VALUES.nbytes, "<f4"), VALUES.ravel() + 1)
    np.testing.assert_array_equal(first, VALUES.ravel())


def test_a_file_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100))
    with pytest.raises(ValueError, match="shorter"):
        map_copy(tmp_path / "data", 50, 51, "i1")


def test_the_folder_is_gone_when_the_process_has_ended() -> None:
    code = "import numpy as np; from npuc.storage.mapped import *; v = keep(np.zeros(HEAVY)); print(folder())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() and not Path(done.stdout.strip()).exists()


@pytest.mark.parametrize("supported", [True, False])
def test_pieces_of_every_kind_are_appended_in_order(
    supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """supported: whether the system copies from file to file itself."""

    def refused(*_: object) -> int:
        raise OSError(18, "files of different systems")

    if not supported:
        monkeypatch.setattr(os, "copy_file_range", refused, raising=False)
    part = keep(VALUES)[1:]
    with (tmp_path / "all").open("wb", buffering=0) as file:
        for piece in (b"before", part, np.arange(5), b"behind"):
            append(file, piece)
    whole = b"before" + VALUES[1:].tobytes() + np.arange(5).tobytes() + b"behind"
    assert (tmp_path / "all").read_bytes() == whole


@pytest.mark.parametrize("supported", [True, False])
def test_a_copy_has_the_bytes_of_its_part_of_the_file(
    supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not supported:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    source = tmp_path / "source"
    source.write_bytes(b"1234" + VALUES.tobytes() + b"5678")
    np.testing.assert_array_equal(map_copy(source, 4, VALUES.nbytes, np.float32), VALUES.ravel())
    with pytest.raises(ValueError, match="shorter"):
        map_copy(source, 8, VALUES.nbytes + 1, np.uint8)


SIZES = (5, HEAVY // 2, HEAVY - 6 - HEAVY // 2, 3, HEAVY + 7, 1, 0, 40)


def grown(monkeypatch: pytest.MonkeyPatch | None = None, writes: int = 0) -> tuple[Growing, list[np.ndarray]]:
    """Bytes of several sizes. writes: the number of writes until the disk is full, if monkeypatch is given."""
    random, write, left = np.random.default_rng(0), mapped._write, [writes]

    def full(file: IO[bytes], data: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            file.write(b"some of it")
            raise OSError(28, "No space left on device")
        write(file, data)

    if monkeypatch is not None:
        monkeypatch.setattr(mapped, "_write", full)
    growing, parts = Growing(), [random.integers(0, 256, size, np.uint8) for size in SIZES]
    for number, part in enumerate(parts):
        growing.append(part)
        assert len(growing) == sum(SIZES[: number + 1])
    return growing, parts


@pytest.mark.parametrize("writes", [None, 0, 1, 2, 3, 5])
def test_bytes_grow_in_a_file_and_in_memory_once_the_disk_is_full(
    writes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing, parts = grown() if writes is None else grown(monkeypatch, writes)
    starts = np.cumsum([0, *SIZES])
    assert [growing.read(int(at), size) for at, size in zip(starts, SIZES, strict=False)] == [
        part.tobytes() for part in parts
    ]
    content = growing.content()
    assert bytes(content) == b"".join(part.tobytes() for part in parts)
    if writes is None:
        assert isinstance(content, Pieces) and len(content.pieces) == 1
        assert isinstance(content.pieces[0], np.ndarray) and place_of(content.pieces[0]) is not None


def test_few_bytes_are_in_memory() -> None:
    growing = Growing()
    growing.append(np.arange(7, dtype=np.uint8))
    assert growing.content() == bytes(range(7))


def test_the_file_of_bytes_that_nobody_wants_is_removed() -> None:
    before = set(mapped.folder().iterdir())
    growing, _ = grown()
    assert len(set(mapped.folder().iterdir()) - before) == 1
    del growing
    gc.collect()
    assert set(mapped.folder().iterdir()) == before


def test_a_file_gets_another_name_with_the_rights_of_a_new_file(tmp_path: Path) -> None:
    found = keep(VALUES)
    assert link(found, tmp_path / "linked")
    (tmp_path / "new").write_bytes(b"")
    assert (tmp_path / "linked").stat().st_mode == (tmp_path / "new").stat().st_mode
    del found
    gc.collect()
    assert (tmp_path / "linked").read_bytes() == VALUES.tobytes()


def test_only_whole_files_get_another_name_and_where_the_system_lets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = keep(VALUES)
    assert not link(VALUES, tmp_path / "a") and not link(found[1:], tmp_path / "a")

    def refused(*_: object) -> None:
        raise OSError(18, "files of different systems")

    monkeypatch.setattr(os, "link", refused)
    assert not link(found, tmp_path / "a") and not (tmp_path / "a").exists()
