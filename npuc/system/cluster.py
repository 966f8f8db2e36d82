"""Work on a Dask cluster, whose workers have npuc and see the same files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, TypeVar

from npuc.errors import ArtefactError, NpucError

T = TypeVar("T")
R = TypeVar("R")


def on_cluster(
    function: Callable[[T], R],
    tasks: Callable[[int], Sequence[T]],
    scheduler: str,
    advance: Callable[[int], None] = lambda _: None,
) -> Iterator[R]:
    """The results of the function for all tasks, in order.

    tasks: makes the tasks, given how many run in parallel. advance: called with 1 after each.
    Raises ArtefactError (E507) without Dask and if the cluster fails; an NpucError of a task is passed on.
    """
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        reason = "--scheduler needs Dask, which is not installed"
        raise ArtefactError("E507", reason, remedy="pip install 'npuc[dask]', or leave --scheduler out") from None
    try:
        with distributed.Client(scheduler, timeout=10, set_as_default=False) as client:
            side_by_side = sum(client.nthreads().values())
            for future in client.map(function, tasks(side_by_side), pure=False):
                yield future.result()
                advance(1)
    except NpucError:
        raise
    except Exception as error:  # a failure on a worker arrives with its own type
        reason = f"the Dask cluster at '{scheduler}' fails ({type(error).__name__}: {error})"
        raise ArtefactError("E507", reason, remedy="check the address, and that its workers have npuc") from None
