"""Passes and how they run: each is a pure function from Graph to Graph, checked after every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import process_time
from typing import Protocol

from npuc.errors import Defect, ModelError, NpucError
from npuc.ir import Graph
from npuc.storage.mapped import keep, release


class Pass(Protocol):
    """A pure function with a name; options of a pass are the fields of a frozen dataclass with __call__."""

    @property
    def __name__(self) -> str:
        """The name that --dump-after and errors use."""
        ...

    def __call__(self, graph: Graph, /) -> Graph:
        """The rewritten graph; the given one if there is nothing to do."""
        ...


Hook = Callable[[str, Graph, Graph, float], None]
"""Called after each pass with its name, the graph before, the graph after, and its CPU seconds."""

Step = tuple[str, Graph, Graph]
"""Name of a pass, the graph before it, the graph after it."""


def recorder(steps: list[Step], hook: Hook | None = None) -> Hook:
    """A hook that adds every pass that changes the graph to the steps, and then calls the given one."""

    def recording(name: str, before: Graph, after: Graph, seconds: float) -> None:
        if after is not before:
            steps.append((name, before, after))
        if hook is not None:
            hook(name, before, after, seconds)

    return recording


def run_passes(graph: Graph, passes: Sequence[Pass], hook: Hook | None = None) -> Graph:
    """The graph after all passes, in order.

    Every graph is checked; an error names the pass that raised it. Raises Defect for a pass that fails otherwise.
    """
    for each in passes:
        name = each.__name__
        started = process_time()
        try:
            after = _with_mapped(each(graph))
            after.check()
            _check_names(graph, after)
        except NpucError as error:
            raise error.within(f"in pass {name}") from error
        except Exception as error:
            raise Defect.of(error, f"in pass {name}") from error
        if hook is not None:
            hook(name, graph, after, process_time() - started)
        graph = after
    return graph


def _check_names(before: Graph, after: Graph) -> None:
    """Raises ModelError (E104) if a pass gave a new tensor the name of a tensor that the model had."""
    new = after.tensors.keys() - before.tensors.keys()
    for name in sorted(new & before.reserved):
        raise ModelError("E104", "a new tensor has the name of one of the model's", tensor=name)


def _with_mapped(graph: Graph) -> Graph:
    """The graph with its heavy constants mapped from files."""
    mapped = {name: keep(value) for name, value in graph.constants.items()}
    if all(mapped[name] is value for name, value in graph.constants.items()):
        return graph
    release()
    return replace(graph, constants=mapped)
