"""Memory budget for models and data: constants, folded values, expanded functions, unpacked arrays.

A file of a few bytes can request any amount of memory. Code that allocates a size named in a file must check here
first. All of it shares one budget; nothing is returned before the work is done.
"""

from __future__ import annotations

import errno
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from npuc.errors import ArtefactError, DataError, ModelError, NpucError, Problem
from npuc.frozen import frozen

MEMORY_LIMIT = 1 << 30
"""In bytes; --memory-limit changes it."""
TIME_LIMIT = 30
"""Seconds of processor time for onnxruntime to open an untrusted model, or to run one sample of it;
NPUC_TIME_LIMIT changes it."""
NODE_BYTES = 1 << 12
"""Bytes counted for a node with its names and types."""
REMEDY = "if you trust it, allow more with --memory-limit BYTES"


@dataclass
class Budget:
    """A limit and the bytes in use."""

    limit: int
    used: int = 0


@frozen
class ProcessLimits:
    """Memory in bytes, and processor time in seconds."""

    memory: int = MEMORY_LIMIT
    seconds: int = TIME_LIMIT


_limits: ContextVar[ProcessLimits | None] = ContextVar("limits", default=None)
_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def limits() -> ProcessLimits:
    """The limits in force."""
    return _limits.get() or ProcessLimits()


@contextmanager
def set_limits(memory: int | None = None, seconds: int | None = None) -> Generator[None]:
    """A block with other limits for budgets (bytes) and onnxruntime (seconds); None keeps the current one."""
    before = limits()
    token = _limits.set(ProcessLimits(memory or before.memory, seconds or before.seconds))
    try:
        yield
    finally:
        _limits.reset(token)


@contextmanager
def budget() -> Generator[None]:
    """A block, or a decorated function, with a budget of its own unless it is nested in another."""
    if _current.get() is not None:
        yield
        return
    token = _current.set(Budget(limits().memory))
    try:
        yield
    finally:
        _current.reset(token)


def expect_room(size: float, what: str, *, node: str | None = None, tensor: str | None = None) -> None:
    """Raises ModelError (E110) unless `size` bytes are left."""
    given = _current.get() or Budget(limits().memory)
    if not given.used + size <= given.limit:
        reason = f"{what} of {size:,.0f} bytes, with {given.used:,} in use"
        raise ModelError("E110", reason, node=node, tensor=tensor, limit=f"{given.limit:,} bytes", remedy=REMEDY)


def too_much() -> ModelError:
    """The error (E110) for a model that exceeded the memory limit while it ran."""
    limit = f"{limits().memory:,} bytes"
    return ModelError("E110", "onnxruntime needs more memory for it", limit=limit, remedy=REMEDY)


def no_memory() -> ModelError:
    """The error (E110) where the system refuses memory."""
    remedy = "raise the limit of the shell or container (ulimit -v), or free memory"
    return ModelError("E110", "npuc needs more memory than the system gives it", remedy=remedy)


def is_exhausted(error: Exception) -> bool:
    """Whether an exception says that the system has no memory; modules that cannot be loaded say it in words."""
    if isinstance(error, ImportError):
        return any(each in str(error) for each in ("annot allocate memory", "failed to map segment"))
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def too_long() -> ModelError:
    """The error (E111) for a model that exceeded the time limit."""
    limit, remedy = f"{limits().seconds} seconds", "if you trust it, allow more: NPUC_TIME_LIMIT=SECONDS"
    return ModelError("E111", "onnxruntime takes longer for it", limit=limit, remedy=remedy)


def beyond_limits(error: NpucError) -> bool:
    """Whether something was refused for its need of memory or time (E110, E111): it is not tried another way."""
    return any(each.code in ("E110", "E111") for each in error.problems)


def expect_simulable(size: int, what: str) -> None:
    """Raises ArtefactError (E509) unless `size` bytes, requested by an artefact, are left."""
    try:
        expect_room(size, what)
    except ModelError as error:
        raise ArtefactError.of(replace(each, code="E509") for each in error.problems) from None


def take(size: int, what: str, *, node: str | None = None, tensor: str | None = None) -> None:
    """Uses bytes of the budget. Raises ModelError (E110) if too few are left."""
    expect_room(size, what, node=node, tensor=tensor)
    given = _current.get()
    if given is not None:
        given.used += size


def content(path: Path) -> bytes:
    """The bytes of a file, whatever size it claims. Raises OSError, and ModelError (E110) beyond the limit."""
    expect_room(path.stat().st_size, f"'{path}'")
    with path.open("rb") as file:
        data = file.read() if path.is_file() else file.read(limits().memory + 1)
    expect_room(len(data), f"'{path}'")
    return data


def read_file(path: Path, code: str, remedy: str) -> bytes:
    """The bytes of a file that the user names. Raises NpucError: this code if it cannot be read, E110 as above."""
    try:
        return content(path)
    except OSError as error:
        reason = f"'{path}' cannot be read: {error.strerror or error}"
        raise NpucError.of([Problem(code, reason, remedy=remedy)]) from None


def fits(size: int) -> bool:
    """Uses bytes of the budget if enough are left; returns whether they are."""
    try:
        take(size, "")
    except ModelError:
        return False
    return True


def take_data(size: int, file: str, array: str) -> None:
    """Uses bytes for an array of a data file. Raises DataError (E403) if too few are left."""
    try:
        take(size, "an array")
    except ModelError as error:
        (problem,) = error.problems
        reason = f"'{file}' holds {problem.reason}"
        raise DataError("E403", reason, tensor=array, limit=problem.limit, remedy=REMEDY) from None
