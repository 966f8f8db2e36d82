"""onnxruntime on untrusted models, in a separate process with limits on memory and processor time.

What a model requests while it runs cannot be determined from the file: computed shapes, endless loops, windows as
large as the feature map. The operating system enforces the limits instead, and npuc continues when the process has
ended.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from npuc.errors import ModelError, NpucError
from npuc.frozen import frozen
from npuc.system import budget, interrupts

AVAILABLE = sys.platform == "linux"
"""Linux reports a process's resource usage and forks cheaply. On other systems onnxruntime is not limited."""
IDLE = 1.0
"""Seconds after which an idle process checks whether its parent still exists."""
STILL = 20.0
"""Seconds without any processor use after which a process counts as stuck, in a deadlock."""
EXHAUSTED = ("bad_alloc", "allocate", "bad array new length", "length_error")
"""Parts of the messages of onnxruntime and numpy when memory is exhausted."""


class _StoodStill(ModelError):
    """A process has not used the processor for too long."""


_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_CULPRITS = (
    re.compile(r"^Non-zero .* while running (?P<op>\w+) node\. Name:'(?P<node>.*?)' Status Message: ", re.S),
    re.compile(r"^Node \((?P<node>.*?)\) Op \((?P<op>\w+)\) (\[\w+\] )?", re.S),
)
"""How onnxruntime begins if it knows the node: when it runs it, and when it opens the model."""


def runtime_refusal(said: object, kind: type[ModelError] = ModelError) -> ModelError:
    """The error (E105) for a model, or for data, that onnxruntime refuses, with the node that it names."""
    text = _STATUS.sub("", str(said)).strip()
    found = next(filter(None, (each.match(text) for each in _CULPRITS)), None)
    named = {name: value or None for name, value in found.groupdict().items()} if found else {}
    return kind("E105", f"onnxruntime cannot run it: {text[found.end() :] if found else text}", **named)


@frozen
class PortType:
    """An input or an output, as onnxruntime describes it."""

    name: str
    shape: Sequence[Any]
    type: str


class Confined:
    """An onnxruntime session in another process, with `budget`'s limits."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        """opened: opens the session. Raises its exceptions, and ModelError (E110, E111) beyond the limits."""
        import onnxruntime as _  # noqa: F401  once, and not again in every process

        self.limits = budget.limits()
        try:
            self._start(opened)
        except _StoodStill:
            self._start(opened)

    def _start(self, opened: Callable[[], Any]) -> None:
        """Opens the session in a new process.

        Raises _StoodStill if the process does nothing, for instance because it inherited a lock of another thread.
        """
        self.pipe, theirs = Pipe()
        _set_timeouts(self.pipe)
        owner = os.getpid()
        self.process = interrupts.fork(lambda: _serve(opened, self.limits, theirs, owner), theirs.fileno())
        theirs.close()
        self.end = weakref.finalize(self, _end, self.process, self.pipe, os.getpid())
        try:
            self.inputs, self.outputs = self._answer()
        except BaseException:
            self.end()
            raise

    def get_inputs(self) -> Sequence[PortType]:
        """Name, shape and type of every input."""
        return self.inputs

    def get_outputs(self) -> Sequence[PortType]:
        """Name, shape and type of every output."""
        return self.outputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """These outputs, or all. Raises ModelError: E105 if onnxruntime refuses, E110 and E111 beyond limits."""
        try:
            self.pipe.send((names, dict(feeds)))
        except OSError:
            raise self._end_reason() from None
        return self._answer()

    def _answer(self) -> Any:
        used = None
        try:
            while not self.pipe.poll(STILL):
                before, used = used, processor_time(self.process)
                if used == before:
                    self.end()
                    raise runtime_refusal(f"it has stood still for {STILL:g} seconds", _StoodStill)
            found = self.pipe.recv()
        except (EOFError, OSError):
            raise self._end_reason() from None
        if isinstance(found, NpucError):
            raise found
        return found

    def _end_reason(self) -> NpucError:
        """The reason why there is no answer."""
        status = self.end() or 0
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            return budget.too_long()
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == errno.ENOMEM:
            return budget.too_much()
        return runtime_refusal(f"it ended with status {status}")


class Unconfined:
    """The same interface in this process, without limits."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self.session = opened()
        self.get_inputs, self.get_outputs = self.session.get_inputs, self.session.get_outputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """These outputs, or all. Raises ModelError (E105) if onnxruntime refuses."""
        try:
            return self.session.run(names, feeds)
        except Exception as error:  # onnxruntime raises many unrelated types
            raise runtime_refusal(error) from None


def isolate(opened: Callable[[], Any]) -> Confined | Unconfined:
    """The session of an untrusted model, confined if the system supports it."""
    return (Confined if AVAILABLE else Unconfined)(opened)


def processor_time(process: int) -> tuple[str, ...]:
    """A process's processor time so far in clock ticks: in user mode, and in the kernel."""
    try:
        return tuple(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13])
    except OSError:  # the process has ended
        return ()


def _end(process: int, pipe: Connection, owner: int) -> int:
    """Ends a process, unless another process started it; returns its status."""
    pipe.close()
    return interrupts.end(process) if os.getpid() == owner else 0


def _set_timeouts(pipe: Connection) -> None:
    """Sets timeouts: if the other end neither sends nor accepts a byte for STILL seconds, an OSError results."""
    import socket
    import struct

    both = socket.socket(fileno=pipe.fileno())
    for direction in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        both.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", int(STILL), int(STILL % 1 * 1_000_000)))
    both.detach()


def _serve(opened: Callable[[], Any], limits: budget.ProcessLimits, pipe: Connection, owner: int) -> None:
    """Opens a session and runs it on request. Raises MemoryError for a feed that is too large."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _restrict(resource.RLIMIT_AS, pages * resource.getpagesize() + limits.memory)
    _restrict(resource.RLIMIT_CORE, 0)

    def answer(work: Callable[[], Any]) -> None:
        _restrict(resource.RLIMIT_CPU, int(time.process_time()) + limits.seconds + 1)
        try:
            pipe.send(work())
        except Exception as error:  # onnxruntime raises many unrelated types
            pipe.send(_refusal(error))

    session: list[Any] = []

    def ports() -> Any:
        session.append(opened())
        return tuple(
            tuple(PortType(each.name, each.shape, each.type) for each in found)
            for found in (session[0].get_inputs(), session[0].get_outputs())
        )

    answer(ports)
    while session:
        while not pipe.poll(IDLE):
            if os.getppid() != owner:
                return
        names, feeds = pipe.recv()
        answer(lambda names=names, feeds=feeds: session[0].run(names, feeds))


def _restrict(what: int, limit: int) -> None:
    """Lowers a limit, unless it is already lower; the hard limit stays."""
    import resource

    _, most = resource.getrlimit(what)
    resource.setrlimit(what, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _refusal(error: Exception) -> NpucError:
    """The error to report for an exception: onnxruntime's exceptions cannot be sent to another process."""
    if isinstance(error, MemoryError) or any(each in str(error) for each in EXHAUSTED):
        return budget.too_much()
    return error if isinstance(error, NpucError) else runtime_refusal(error)
