"""Ctrl-C and termination requests: a command stops at once, with one line, and leaves no process or partial file.

The first signal ends the programs that npuc started and unwinds the command as a KeyboardInterrupt, which removes
staged files. Code that catches too much cannot hide it: `guard` remembers it. A second signal ends npuc
immediately; what that leaves behind is removed by the next run (npuc.storage.files).
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from subprocess import CompletedProcess

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

FAILED = 1
"""The exit code of a forked process whose work failed; errno.ENOMEM if it ran out of memory."""
STREAMS = range(3)
"""Descriptors of standard input, output and error."""
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""
DESCRIPTORS = Path("/proc/self/fd")


class _State:
    """State of this process."""

    arrived: ClassVar[int | None] = None
    """The first signal."""
    deferring: ClassVar[int] = 0
    """The number of nested blocks that must not be interrupted."""
    running: ClassVar[set[int]] = set()
    """Process groups that npuc started."""


def guard(command: Callable[[], int]) -> int:
    """The exit code of a command; if a signal ended it, 128 plus its number, after one line on stderr."""
    install()
    try:
        code = command()
    except BaseException:
        if _State.arrived is None:
            raise
        _silence()  # again: leaving blocks has restored the warnings
        code = 0
    for each in SIGNALS:  # the command has ended: nothing is left to interrupt
        signal.signal(each, signal.SIG_IGN)
    if _State.arrived is None:
        return code
    _tell()
    return 128 + _State.arrived


def install() -> None:
    """Catches the signals, except those that the parent process had set to be ignored."""
    for each in SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _catch)
    sys.unraisablehook = _unraisable


def has_arrived() -> bool:
    """Whether a signal has arrived: later errors are its consequence."""
    return _State.arrived is not None


def _catch(number: int, frame: FrameType | None) -> None:
    if _State.arrived is not None and not _State.deferring:
        _end()
    _State.arrived = number
    _silence()
    if not _State.deferring:
        stop()
        if _loads_extension(frame):
            _end()
        raise KeyboardInterrupt


def _loads_extension(frame: FrameType | None) -> bool:
    """Whether an extension module is being loaded: an exception then ends the process with a C++ traceback."""
    while frame is not None and not isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
        frame = frame.f_back
    return frame is not None


def _silence() -> None:
    """Suppresses warnings about objects left unfinished."""
    import warnings

    warnings.simplefilter("ignore")


def _unraisable(problem: sys.UnraisableHookArgs) -> None:
    """Ends npuc on an interrupt inside a finaliser, which cannot unwind the command."""
    if isinstance(problem.exc_value, KeyboardInterrupt) and has_arrived():
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
def defer() -> Generator[None]:
    """A block that signals do not interrupt; they act when the block has ended."""
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
    """Kills the programs that `run` waits for, with all processes that they started."""
    for group in list(_State.running):
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def run(command: Sequence[str | Path], folder: Path | None = None) -> CompletedProcess[str]:
    """A program's exit code and output. It gets no input, and ends when npuc is interrupted.

    Raises OSError if it cannot be started.
    """
    import subprocess

    with defer():
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
    if has_arrived():  # a signal arrived while another thread started it
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
    """Forks this process to do some work without output; returns its process number, for `end`.

    kept: the only descriptor that the child keeps. With any other it could hold a pipe or a lock of this process,
    or of its parent, open for too long.
    """
    import warnings

    bind = _child_binder()
    with defer(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads, which the copy does not need
        child = os.fork()
        if child == 0:
            _work(work, kept, bind)
        _State.running.add(child)
    return child


def _child_binder() -> Callable[[], None]:
    """A function that makes a child end with its parent, whatever ends that, if the system supports it.

    Linux refers to the parent thread: children started by another thread may outlive that thread.
    """
    if sys.platform != "linux" or current_thread() is not main_thread():
        return lambda: None
    import ctypes

    library, owner = ctypes.CDLL(None), os.getpid()

    def bind() -> None:
        library.prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != owner:  # the parent ended before
            os._exit(FAILED)

    return bind


def _work(work: Callable[[], None], kept: int, bind: Callable[[], None]) -> None:
    status = FAILED
    try:
        bind()
        gc.freeze()  # objects inherited from the parent must not be finalised here: their threads do not exist
        os.setsid()
        for each in (*SIGNALS, signal.SIGXCPU):
            signal.signal(each, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in STREAMS:
            os.dup2(nowhere, stream)
        for each in [int(path.name) for path in DESCRIPTORS.iterdir()]:
            if each not in (*STREAMS, kept):
                with suppress(OSError):  # the descriptor of the listing itself
                    os.close(each)
        work()
        status = 0
    except MemoryError:
        status = errno.ENOMEM
    finally:
        os._exit(status)


def end(child: int) -> int:
    """Ends a child; returns its status, as os.waitpid does."""
    with defer():
        _State.running.discard(child)
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
        try:
            return os.waitpid(child, 0)[1]
        except ChildProcessError:
            return 0


def as_worker(folder: Path) -> None:
    """Makes a worker process end with its parent, whatever ends that, and ignore Ctrl-C.

    folder: where its temporary files are kept, and removed by the parent; a worker that is ended leaves them.
    """
    import tempfile
    from multiprocessing import parent_process
    from threading import Thread

    def terminate(number: int, frame: Any) -> None:
        del frame
        stop()
        os._exit(128 + number)

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    tempfile.tempdir = str(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, terminate)
    Thread(target=watch, daemon=True).start()


@contextmanager
def unheard() -> Generator[None]:
    """A block whose new processes never receive Ctrl-C: the process that starts them ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
