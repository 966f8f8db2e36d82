"""Ctrl-C and requests to end: a command stops at once, with one line, and leaves no process and no half of a file.

The first signal ends the programs that npuc started and unwinds the command as a KeyboardInterrupt, which removes
what was staged. Code that catches too much cannot hide it: `guarded` remembers it. A second signal ends npuc where
it stands; what that leaves behind is removed by the next run (npuc.storage.files).
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from subprocess import CompletedProcess

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

FAILED = 1
"""The exit code of a copy whose work failed; errno.ENOMEM where it had no memory for it."""
STREAMS = range(3)
"""Descriptors of standard input, output and error."""
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""
DESCRIPTORS = Path("/proc/self/fd")


class _State:
    """Of this process."""

    arrived: ClassVar[int | None] = None
    """The first signal."""
    deferring: ClassVar[int] = 0
    """Blocks that must not be interrupted."""
    running: ClassVar[set[int]] = set()
    """Process groups that npuc started."""


def guarded(command: Callable[[], int]) -> int:
    """The exit code of a command: 128 and the signal's number, after one line on stderr, where one ended it."""
    install()
    try:
        code = command()
    except BaseException:
        if _State.arrived is None:
            raise
        _silence()  # once more: blocks that were left have put back what there was
        code = 0
    for each in SIGNALS:  # the command has ended: nothing is left to interrupt
        signal.signal(each, signal.SIG_IGN)
    if _State.arrived is None:
        return code
    _tell()
    return 128 + _State.arrived


def install() -> None:
    """Catches the signals, but for those that whoever started npuc wants ignored."""
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _caught)
    sys.unraisablehook = _unraisable


def arrived() -> bool:
    """Whether a signal has come: what goes wrong from then on is its doing."""
    return _State.arrived is not None


def _caught(number: int, frame: FrameType | None) -> None:
    del frame
    if _State.arrived is not None and not _State.deferring:
        _end()
    _State.arrived = number
    _silence()
    if not _State.deferring:
        stop()
        raise KeyboardInterrupt


def _silence() -> None:
    """What is left half-made no longer warns of that."""
    import warnings

    warnings.simplefilter("ignore")


def _unraisable(problem: sys.UnraisableHookArgs) -> None:
    """An interrupt inside a finaliser does not unwind the command: it ends here."""
    if isinstance(problem.exc_value, KeyboardInterrupt) and arrived():
        _end()
    sys.__unraisablehook__(problem)


def _end() -> None:
    stop()
    _tell()
    os._exit(128 + (_State.arrived or 0))


def _tell() -> None:
    with suppress(OSError):
        os.write(2, b"interrupted\n")


@contextmanager
def deferred() -> Generator[None]:
    """A block that a signal does not interrupt; it acts when the block has ended."""
    if current_thread() is not main_thread():  # Python runs handlers in the main thread only
        yield
        return
    before = _State.arrived
    _State.deferring += 1
    try:
        yield
    finally:
        _State.deferring -= 1
    if before is None and _State.arrived is not None and not _State.deferring:
        stop()
        raise KeyboardInterrupt


def stop() -> None:
    """Kills the programs that `run` waits for, and all that they have started."""
    for group in list(_State.running):
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def run(command: Sequence[str | Path], folder: Path | None = None) -> CompletedProcess[str]:
    """A program's exit code and what it printed. It reads nothing, and ends when npuc is interrupted.

    Raises OSError where it cannot be started.
    """
    import subprocess

    with deferred():
        child = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )
        _State.running.add(child.pid)
    if arrived():  # while another thread started it
        stop()
    try:
        with child:
            out, err = child.communicate()
    except BaseException:
        stop()
        raise
    finally:
        _State.running.discard(child.pid)
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def fork(work: Callable[[], None], kept: int) -> int:
    """Starts a copy of this process that does some work and says nothing; gives its number, for `end`.

    kept: the one descriptor that the copy goes on with. With any other it could hold a pipe or a lock of this
    process, or of its parent, open for longer than they live.
    """
    import warnings

    bind = _bound()
    with deferred(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads, which the copy does not need
        child = os.fork()
        if child == 0:
            _work(work, kept, bind)
        _State.running.add(child)
    return child


def _bound() -> Callable[[], None]:
    """What makes a copy end with the process that starts it, whatever ends that; where the system can.

    Linux speaks of the thread that starts it: copies that another thread starts may live longer than that thread.
    """
    if sys.platform != "linux" or current_thread() is not main_thread():
        return lambda: None
    import ctypes

    library, owner = ctypes.CDLL(None), os.getpid()

    def bind() -> None:
        library.prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != owner:  # it ended before
            os._exit(FAILED)

    return bind


def _work(work: Callable[[], None], kept: int, bind: Callable[[], None]) -> None:
    status = FAILED
    try:
        bind()
        gc.freeze()  # what the copy inherits may not be torn down here: its threads are not there
        os.setsid()
        for each in (*SIGNALS, signal.SIGXCPU):
            signal.signal(each, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in STREAMS:
            os.dup2(nowhere, stream)
        for each in [int(path.name) for path in DESCRIPTORS.iterdir()]:
            if each not in (*STREAMS, kept):
                with suppress(OSError):  # that of the listing itself
                    os.close(each)
        work()
        status = 0
    except MemoryError:
        status = errno.ENOMEM
    finally:
        os._exit(status)


def end(child: int) -> int:
    """Ends a copy; gives its status, as os.waitpid does."""
    with deferred():
        _State.running.discard(child)
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
        try:
            return os.waitpid(child, 0)[1]
        except ChildProcessError:
            return 0


def as_worker() -> None:
    """Makes a process that works for another end with it, whatever ends that, and leave Ctrl-C to it."""
    from multiprocessing import parent_process
    from threading import Thread

    def terminated(number: int, frame: Any) -> None:
        del frame
        stop()
        os._exit(128 + number)

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, terminated)
    Thread(target=watch, daemon=True).start()


@contextmanager
def unheard() -> Generator[None]:
    """A block whose new processes never hear Ctrl-C: they are ended by the one that starts them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
