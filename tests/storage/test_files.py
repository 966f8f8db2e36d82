"""What is written appears whole or not at all, whatever ends the writer; what killed writers leave is removed."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from npuc.errors import ArtefactError
from npuc.storage import files
from npuc.storage.files import recover, replacing, replacing_folder

KILLS = Path(__file__).with_name("kills.py")
EXCHANGES = sys.platform == "linux"


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@contextmanager
def locked(path: Path) -> Generator[None]:
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


@pytest.mark.parametrize("options", [[], ["--without-exchange"]])
def test_a_writer_killed_at_any_moment_leaves_the_old_artefact_or_the_new_one_whole(
    tmp_path: Path, options: list[str]
) -> None:
    command = [sys.executable, KILLS, tmp_path, "120", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'old'" in done.stdout and "'new'" in done.stdout and "'with leftovers'" in done.stdout


@pytest.mark.skipif(not EXCHANGES, reason="renameat2 is Linux's")
def test_the_system_exchanges_folders_in_one_step(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert files._exchange(tmp_path / "a", tmp_path / "b")
    assert (names(tmp_path / "a"), names(tmp_path / "b")) == (["b"], ["a"])
    with pytest.raises(FileNotFoundError):
        files._exchange(tmp_path / "a", tmp_path / "c")


def test_a_staged_file_has_a_random_name_and_is_opened_exclusively(tmp_path: Path) -> None:
    found = set[str]()
    for _ in range(3):
        with replacing(tmp_path / "y.npz") as staging:
            assert re.fullmatch(r"\.y\.npz\.[0-9a-f]{8}\.partial", staging.name) and staging.exists()
            found.add(staging.name)
    assert len(found) == 3
    (tmp_path / "there").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        files._new_file(tmp_path / "there")


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o755), (0o077, 0o700), (0o002, 0o775)])
def test_others_may_read_a_folder_as_the_user_s_mask_says(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        with replacing_folder(tmp_path / "out"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == mode


def test_a_link_under_a_staged_name_is_neither_followed_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.secrets, "token_hex", lambda count: "0" * 2 * count)
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / ".y.npz.00000000.partial").symlink_to(tmp_path / "victim")
    with pytest.raises(ArtefactError), replacing(tmp_path / "y.npz"):
        raise AssertionError
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert names(tmp_path) == [".y.npz.00000000.partial", "victim"]


def test_a_failed_block_leaves_what_stood_there(tmp_path: Path) -> None:
    (tmp_path / "y.npz").write_bytes(b"old")
    for replace in (replacing, replacing_folder):
        with pytest.raises(KeyboardInterrupt), replace(tmp_path / "y.npz"):
            raise KeyboardInterrupt
    assert names(tmp_path) == ["y.npz"] and (tmp_path / "y.npz").read_bytes() == b"old"


def test_what_a_killed_run_left_is_removed_but_not_what_a_running_one_uses(tmp_path: Path) -> None:
    for name in (
        ".net.npu.01234567.partial",
        ".net.npu.89abcdef.partial",
        ".net.npu.backup",
        ".net.npu.x.partial",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    with locked(tmp_path / ".net.npu.89abcdef.partial"), replacing_folder(tmp_path / "net.npu"):
        pass
    assert names(tmp_path) == [".net.npu.89abcdef.partial", ".net.npu.backup", ".net.npu.x.partial", "net.npu"]


def test_a_folder_that_was_moved_aside_is_put_back_unless_its_mover_still_runs(tmp_path: Path) -> None:
    aside = tmp_path / ".net.npu.01234567.old"
    aside.mkdir()
    (aside / "manifest.json").touch()
    with locked(aside):
        recover(tmp_path / "net.npu")
        assert names(tmp_path) == [aside.name]
    recover(tmp_path / "net.npu")
    assert names(tmp_path) == ["net.npu"] and names(tmp_path / "net.npu") == ["manifest.json"]


def test_a_folder_takes_the_place_of_a_link_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "precious").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with replacing_folder(tmp_path / "link") as staging:
        (staging / "new").touch()
    assert names(tmp_path / "link") == ["new"] and names(tmp_path / "real") == ["precious"]
    assert names(tmp_path) == ["link", "real"]


@pytest.mark.parametrize("path", [Path(), Path("/"), Path("/proc/none/x"), Path("/dev/null/x")])
def test_a_place_that_cannot_be_written_is_an_error_by_number(path: Path) -> None:
    for replace in (replacing, replacing_folder):
        with pytest.raises(ArtefactError) as caught, replace(path):
            raise AssertionError
        assert caught.value.problems[0].code == "E506"


def test_what_a_link_points_to_is_written_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "y.npz").symlink_to(tmp_path / "real" / "y.npz")
    for content in (b"first", b"second"):
        with replacing(tmp_path / "y.npz") as staging:
            staging.write_bytes(content)
        assert (tmp_path / "y.npz").is_symlink() and (tmp_path / "real" / "y.npz").read_bytes() == content
    assert names(tmp_path / "real") == ["y.npz"]


@pytest.mark.parametrize("through_link", [False, True])
def test_a_pipe_or_a_device_is_not_replaced(through_link: bool, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for replace in (replacing, replacing_folder):
        with pytest.raises(ArtefactError) as caught, replace(tmp_path / ("link" if through_link else "pipe")):
            raise AssertionError
        assert caught.value.problems[0].code == "E506"
    assert (tmp_path / "pipe").is_fifo() and names(tmp_path) == ["link", "pipe"]
