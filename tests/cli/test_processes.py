"""What only a process of its own shows: start-up, pipes, encodings, file names that are not UTF-8."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.process import SYNTHETIC, Digits, npuc

ROOT = Path(__file__).resolve().parents[2]


def process(*arguments: str | bytes | Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "npuc", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, capture_output=True, env=variables, timeout=60, check=False)


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "onnx", "onnxruntime", "networkx")
    script = (
        "import sys; from npuc.cli import npuc; npuc.main(['compile', '--help'], standalone_mode=False); "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


def test_the_readme_s_commands_work_as_processes(digits: Digits, tmp_path: Path) -> None:
    program = tmp_path / "digits.npu"
    compiled = process("compile", digits.model, "--target", "easynpu", "--calibration", digits.few, "-o", program)
    assert (compiled.returncode, compiled.stderr) == (0, b"")
    verified = process("verify", digits.model, program, "--data", digits.few, "--json")
    assert (verified.returncode, verified.stderr) == (0, b"")
    assert json.loads(verified.stdout)["status"] == "ok"


def test_errors_go_to_stderr_and_json_to_stdout(tmp_path: Path) -> None:
    text = process("compile", *SYNTHETIC, tmp_path / "none.onnx", "--target", "easynpu")
    assert (text.returncode, text.stdout) == (1, b"") and text.stderr.startswith(b"error[E101]")
    both = process("compile", *SYNTHETIC, tmp_path / "none.onnx", "--target", "easynpu", "--json")
    assert both.returncode == 1 and json.loads(both.stdout)["errors"][0]["code"] == "E101"
    usage = process("compile", "--json")
    assert usage.returncode == 2 and json.loads(usage.stdout)["errors"][0]["code"] == "usage"


def test_a_reader_that_stops_early_ends_the_command_quietly(digits: Digits) -> None:
    command = [sys.executable, "-m", "npuc", "dump", str(digits.program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_under_stdout_is_one_clear_block(digits: Digits) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "npuc", "dump", str(digits.program)]
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    assert found.returncode == 1 and found.stderr.startswith(b"error[E506] standard output cannot be written")


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of processes")
def test_a_full_disk_under_a_temporary_file_is_not_taken_for_stdout(digits: Digits, tmp_path: Path) -> None:
    """The chip model's memory is a file; before, the error said that stdout could not be written."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))"
    run = f"{limited}; import npuc.__main__ as command; command.main()"
    arguments = ["compile", digits.model, "--target", "bm1684", "-o", tmp_path / "m.npu", "--json"]
    found = subprocess.run(
        [sys.executable, "-c", run, *map(str, arguments)], capture_output=True, cwd=ROOT, check=False
    )
    assert found.returncode == 1
    (error,) = json.loads(found.stdout)["errors"]
    assert error["code"] == "E506" and "a temporary file cannot be written" in error["reason"] and error["remedy"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_names_that_the_terminal_cannot_show_are_escaped(digits: Digits, tmp_path: Path, encoding: str) -> None:
    model = tmp_path / "größe→.onnx"
    model.write_bytes(digits.model.read_bytes())
    output = tmp_path / "größe→.npu"
    text = process("compile", *SYNTHETIC, model, "--target", "easynpu", "-o", output, PYTHONIOENCODING=encoding)
    assert text.returncode == 0
    assert "größe→.npu".encode(encoding, "backslashreplace") in text.stdout
    found = process("check", model, "--target", "easynpu", "--json", PYTHONIOENCODING=encoding)
    assert json.loads(found.stdout)["status"] == "ok"


@pytest.mark.skipif(sys.platform != "linux", reason="file names are text")
def test_a_file_name_that_is_not_utf8_is_fine(digits: Digits, tmp_path: Path) -> None:
    model = os.fsencode(tmp_path) + b"/\xff.onnx"
    Path(os.fsdecode(model)).write_bytes(digits.model.read_bytes())
    program = os.fsencode(tmp_path) + b"/\xff.npu"
    compiled = process("compile", model, "--target", "easynpu", "-o", program, "--calibration", digits.few)
    assert compiled.returncode == 0, compiled.stderr
    assert process("verify", model, program, "--data", digits.few).returncode == 0


@contextmanager
def no_privileges() -> Generator[None]:
    """Root without its capabilities: folders are locked for it, too, and it still owns its files."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3 of this thread
    held = (ctypes.c_uint32 * 6)()  # twice effective, permitted, inheritable
    assert libc.capget(header, held) == 0
    assert libc.capset(header, (ctypes.c_uint32 * 6)(0, *held[1:3], 0, *held[4:6])) == 0
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0


@pytest.mark.parametrize("name", ["n" * 5000, "locked/below"])
@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
def test_paths_that_may_not_be_looked_at_are_refused(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("locked").mkdir(mode=0)
    commands = [
        ("compile", *SYNTHETIC, digits.model, "--target", "easynpu", "--machine", name, "-o", "o"),
        ("compile", *SYNTHETIC, name, "--target", "easynpu", "-o", "o"),
        ("dump", name),
        ("run", digits.program, "--data", name, "-o", "o"),
        ("run", name, "--data", digits.few, "-o", "o"),
        ("assemble", name, "--images", digits.program, "-o", "o"),
        ("export", digits.program, "--format", "bin", "-o", name),
    ]
    with no_privileges():
        outcomes = [npuc(*command) for command in commands]
    for outcome in outcomes:
        assert outcome.code == 1 and outcome.err.count("error[E") == 1, outcome
