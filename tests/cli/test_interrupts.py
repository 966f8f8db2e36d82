"""Ctrl-C at any moment of any command: exit code 130, one line, nothing half-written, no process left behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from enum import EnumMeta
from pathlib import Path

import onnx
import pytest

from npuc.cli import npuc as entry
from npuc.program import load
from npuc.system import interrupts
from tests.cli.process import SYNTHETIC, Digits, npuc

ROOT = Path(__file__).resolve().parents[2]
HEARING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
"""Whoever runs the tests may ignore Ctrl-C, as a shell does in the background."""
STARTED = "import os; from npuc.system import interrupts; interrupts.install(); os.write(1, b'.'); "
COMMAND = f"{HEARING}{STARTED}from npuc.__main__ import main; main()"
MOMENTS = int(os.environ.get("NPUC_INTERRUPTS", "1"))
"""How many of each command; `NPUC_INTERRUPTS=50 pytest tests/cli/test_interrupts.py` takes longer."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def started(code: str, folder: Path, *arguments: object) -> tuple[subprocess.Popen[str], str]:
    """A command that catches signals from now on, and a mark that it and all its processes bear."""
    mark = uuid.uuid4().hex
    child = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "NPUC_MARK": mark,
            "XDG_CACHE_HOME": str(folder.parent / "cache"),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.read(1) == "."
    return child, mark


def alive(mark: str) -> Iterator[str]:
    """Processes that bear a mark."""
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if each.name.isdecimal() and mark.encode() in (each / "environ").read_bytes():
                yield (each / "cmdline").read_text()


def expect_none(mark: str) -> None:
    """A killed process may take a moment to go."""
    for _ in range(100):
        left = list(alive(mark))
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(left)


def commands(digits: Digits) -> dict[str, tuple[object, ...]]:
    model, program = digits.model, digits.program
    return {
        "compile": ("compile", model, "--target", "easynpu", "--calibration", digits.calibration, "-o", "out.npu"),
        "bm1684": ("compile", model, "--target", "bm1684", "-o", "out.npu"),
        "nvdla": ("compile", *SYNTHETIC, model, "--target", "nvdla-small", "-o", "out.npu"),
        "run": ("run", program, "--data", digits.test, "-o", "y.npz"),
        "verify": ("verify", model, program, "--data", digits.test),
        "report": ("report", program, "-o", "r.html"),
        "export": ("export", program, "--format", "c", "-o", "c"),
        "dump": ("dump", program),
        "quantize": ("quantize", *SYNTHETIC, model, "--target", "easynpu", "-o", "q.onnx"),
        "sweep": ("sweep", model, "--target", "easynpu", "--grid", "pe_rows=1,2,3,4", "--jobs", "2"),
        "accuracy": ("accuracy", model, program, "--data", digits.test),
        "assemble": ("assemble", digits.program.parent / "listing.txt", "--images", program, "-o", "out.npu"),
        "check": ("check", model, "--target", "bm1684"),
        "compare": ("compare", model, "--targets", "easynpu,nvdla-small"),
        "completion": ("completion", "bash"),
        "diff": ("diff", program, program),
        "explain": ("explain", program, "1"),
        "operators": ("operators", "--target", "easynpu"),
        "rtl": ("rtl", program, "-o", "rtl"),
        "targets": ("targets",),
        "trace": ("trace", program, "-o", "t.pftrace"),
    }


def listed(digits: Digits) -> None:
    """Writes the listing that `assemble` reads, once."""
    path = digits.program.parent / "listing.txt"
    if not path.exists():
        path.write_text(npuc("dump", digits.program).done(), encoding="utf-8")


def expect_clean(folder: Path, left: set[str]) -> None:
    """What stood there, or a result that is whole; nothing staged."""
    found = {each.name for each in folder.iterdir()}
    assert not [name for name in found if name.startswith(".")]
    if "out.npu" in found:
        load(folder / "out.npu")
    assert found - {"out.npu", "y.npz", "r.html", "q.onnx", "c", "rtl", "t.pftrace"} == left


NAMES = [
    "compile", "bm1684", "nvdla", "run", "verify", "report", "export", "dump", "quantize", "sweep", "accuracy",
    "assemble", "check", "compare", "completion", "diff", "explain", "operators", "rtl", "targets", "trace",
]  # fmt: skip


def test_every_command_is_interrupted(digits: Digits) -> None:
    assert {str(each[0]) for each in commands(digits).values()} == set(entry.commands)
    assert list(commands(digits)) == NAMES


LOADING = """
import sys
from importlib.machinery import ExtensionFileLoader

def profile(frame, event, arg):
    inside = event == "call" and frame.f_code.co_filename.endswith("enum.py")
    while inside and frame is not None:
        loader = frame.f_locals.get("self")
        if isinstance(loader, ExtensionFileLoader) and "onnx" in loader.name:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)
            return
        frame = frame.f_back

sys.setprofile(profile)
"""
"""Interrupts Python code that onnx's extension module calls while it is loaded."""


def test_an_interrupt_while_an_extension_module_is_loaded_ends_a_command_with_one_line(
    digits: Digits, tmp_path: Path
) -> None:
    if not isinstance(onnx.defs.OpSchema.SupportType, EnumMeta):
        pytest.skip("this onnx calls no Python code while it is loaded")
    code = f"{HEARING}{STARTED}\n{LOADING}\nfrom npuc.__main__ import main; main()"
    child, _ = started(code, tmp_path, *commands(digits)["bm1684"])
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "interrupted\n")


def test_an_interrupt_before_npuc_handles_it_prints_nothing() -> None:
    sent = "event == 'import' and about[0] == 'npuc.system.interrupts' and os.kill(os.getpid(), signal.SIGINT)"
    code = f"{HEARING}import os, sys; sys.addaudithook(lambda event, about: {sent}); import npuc.__main__"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_nothing_that_takes_time_is_imported_before_interrupts_print_nothing() -> None:
    heard = "event == 'import' and _signal.getsignal(2) is _signal.default_int_handler and print(about[0])"
    code = f"{HEARING}import _signal, sys; sys.addaudithook(lambda event, about: {heard}); import npuc.__main__"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    loaded = set(done.stdout.split())
    assert {"npuc", "npuc.__main__"} <= loaded and loaded.isdisjoint(("typing", "signal", "enum", "re", "pathlib"))


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupt_ends_a_command_with_one_line(digits: Digits, tmp_path: Path, name: str) -> None:
    listed(digits)
    chance = random.Random(name)
    for number in range(MOMENTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        child, mark = started(COMMAND, folder, *commands(digits)[name])
        with suppress(subprocess.TimeoutExpired):
            child.wait(chance.uniform(0, 2.5))
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        said = [line for line in err.splitlines() if line.strip() and not line.startswith("note: ")]
        assert (child.returncode, said) in ((130, ["interrupted"]), (0, [])), (child.returncode, out, err)
        expect_none(mark)
        expect_clean(folder, set())


def test_a_request_to_end_is_as_an_interrupt(digits: Digits, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    code = f"import os; os.environ['TMPDIR'] = {str(temporary)!r}; {COMMAND}"
    child, mark = started(code, tmp_path, *commands(digits)["sweep"])
    for _ in range(500):  # until a worker has begun
        if any(temporary.rglob("machine.toml")):
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err.strip()) == (143, "interrupted")
    expect_none(mark)
    assert not list(temporary.iterdir())


def test_workers_of_a_killed_sweep_end_too(digits: Digits, tmp_path: Path) -> None:
    child, mark = started(COMMAND, tmp_path, *commands(digits)["sweep"])
    for _ in range(200):
        if len(list(alive(mark))) >= 4:  # two workers, and multiprocessing's own
            break
        time.sleep(0.05)
    time.sleep(1)
    child.kill()
    child.communicate(timeout=60)
    expect_none(mark)


def test_what_runs_onnxruntime_ends_with_whoever_started_it(tmp_path: Path) -> None:
    code = f"{HEARING}{STARTED}from npuc.system.confinement import Confined; Confined(lambda: max(iter(int, 1)))"
    child, mark = started(code, tmp_path)
    for _ in range(500):
        if len(list(alive(mark))) >= 2:
            break
        time.sleep(0.02)
    child.kill()
    child.communicate(timeout=20)
    expect_none(mark)


PROGRAM = "interrupts.run(['sh', '-c', 'sleep 600 & sleep 600'])"


def test_programs_that_were_started_end_with_their_children(tmp_path: Path) -> None:
    child, mark = started(f"{HEARING}{STARTED}interrupts.guard(lambda: {PROGRAM})", tmp_path)
    for _ in range(500):
        if len(list(alive(mark))) >= 3:
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    expect_none(mark)


@pytest.mark.parametrize("body", [
    "try: wait()\n except BaseException: raise ImportError('swallowed') from None",
    "try: wait()\n except BaseException: pass\n return 0",
    "import weakref\n class A:\n  def __del__(self): wait()\n A()\n return 0",
    "with interrupts.defer(): wait()\n return 0",
])  # fmt: skip
def test_an_interrupt_that_code_swallows_is_not_lost(tmp_path: Path, body: str) -> None:
    code = (
        f"{HEARING}{STARTED}\nimport sys, time\ndef wait():\n for _ in range(40): time.sleep(0.02)\n"
        f"def command():\n {body}\nsys.exit(interrupts.guard(command))"
    )
    child, _ = started(code, tmp_path)
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (130, "interrupted\n")


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    code = (
        f"{HEARING}{STARTED}\nimport time\ndef command():\n try: time.sleep(60)\n finally: time.sleep(60)\n"
        "interrupts.guard(command)"
    )
    child, _ = started(code, tmp_path)
    for _ in range(2):
        time.sleep(0.3)
        child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert (child.returncode, err) == (130, "interrupted\n")


def test_who_wants_signals_ignored_gets_them_ignored(tmp_path: Path) -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + STARTED + "import time; time.sleep(0.5)"
    )
    child, _ = started(code, tmp_path)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=20)
    assert child.returncode == 0


def test_a_program_s_output_and_exit_code_are_given() -> None:
    done = interrupts.run(["sh", "-c", "echo out; echo err >&2; read x || exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")
