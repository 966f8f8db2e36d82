"""What a model and its data may take of memory: constants, folded values, expanded functions, unpacked arrays.

A file of a few bytes can ask for any amount. Whoever is about to make something of a size that a file names asks
here first. All draw from one budget; nothing is given back before the work is done.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from npuc.errors import DataError, ModelError

MEMORY_LIMIT = 1 << 30
"""Bytes; `npuc compile --memory-limit` changes them."""
NODE_BYTES = 1 << 12
"""What a node takes, with its names and types."""
REMEDY = "if you trust it, allow more: npuc compile --memory-limit BYTES"


@dataclass
class Budget:
    """Bytes that may be used, and those that are."""

    limit: int
    used: int = 0


_limit: ContextVar[int] = ContextVar("memory_limit", default=MEMORY_LIMIT)
_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def memory_limit(limit: int) -> Generator[None]:
    """A block whose budgets have so many bytes."""
    token = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(token)


@contextmanager
def budget() -> Generator[None]:
    """A block, or as a decorator a function, with a budget of its own, unless there is one around it."""
    if _current.get() is not None:
        yield
        return
    token = _current.set(Budget(_limit.get()))
    try:
        yield
    finally:
        _current.reset(token)


def expect_room(size: float, what: str, *, node: str | None = None, tensor: str | None = None) -> None:
    """Raises ModelError (E110) unless so many bytes are left."""
    given = _current.get() or Budget(_limit.get())
    if not given.used + size <= given.limit:
        reason = f"{what} of {size:,.0f} bytes, with {given.used:,} in use"
        raise ModelError("E110", reason, node=node, tensor=tensor, limit=f"{given.limit:,} bytes", remedy=REMEDY)


def take(size: int, what: str, *, node: str | None = None, tensor: str | None = None) -> None:
    """Uses bytes. Raises ModelError (E110) where they are not left."""
    expect_room(size, what, node=node, tensor=tensor)
    given = _current.get()
    if given is not None:
        given.used += size


def fits(size: int) -> bool:
    """Uses bytes, if they are left."""
    try:
        take(size, "")
    except ModelError:
        return False
    return True


def take_data(size: int, file: str, array: str) -> None:
    """Uses bytes for an array of a data file. Raises DataError (E403) where they are not left."""
    try:
        take(size, "an array")
    except ModelError as error:
        (problem,) = error.problems
        reason = f"'{file}' holds {problem.reason}"
        raise DataError("E403", reason, tensor=array, limit=problem.limit, remedy=REMEDY) from None
