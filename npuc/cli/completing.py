"""Names that a shell completes: machines and passes of the target, nodes of the model, layers of the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

FIRST = "first"
"""The first argument: click does not assign arguments to parameters while an option lacks its value."""
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completer(names: Callable[[dict[str, Any]], Iterable[str]], *more: CompletionItem) -> Completer:
    """Completes a word with names that the parameters before it make known, or with nothing if these are wrong."""

    def complete(ctx: click.Context, _param: click.Parameter, word: str) -> list[CompletionItem]:
        found = list[str]()
        with suppress(Exception):  # the command itself reports what is wrong
            given = {**ctx.params, FIRST: next(iter(ctx.args), None)}
            found = [each for each in dict.fromkeys(names(given)) if each.startswith(word)]
        return [*map(CompletionItem, found), *more]

    return complete


def _machines(given: dict[str, Any]) -> Iterable[str]:
    from npuc.registry import TARGETS, target

    asked = given.get("target") or given.get("named") or tuple(TARGETS)
    return (name for each in ((asked,) if isinstance(asked, str) else asked) for name in target(each).machines())


def _passes(given: dict[str, Any]) -> Iterable[str]:
    from npuc.regions.planning import passes_of
    from npuc.registry import target
    from npuc.target import usual_options

    kind = target(given["target"])
    return (each.__name__ for each in passes_of(kind, usual_options(kind)))


def _nodes(given: dict[str, Any]) -> Iterable[str]:
    import onnx

    graph = onnx.load(given.get("model") or given[FIRST], load_external_data=False).graph
    return [each.name for each in graph.node if each.name] + [each.op_type for each in graph.node]


def _layers(given: dict[str, Any]) -> Iterable[str]:
    """Of the program whose folder was given: its layers and their nodes."""
    from npuc.program import load

    report = load(Path(given.get("artefact") or given.get("path") or given[FIRST]), allow_modified=True).report
    return (name for layer in report["layers"] for name in (layer["name"], *layer["nodes"]))


MACHINES, PASSES, NODES, LAYERS = (
    _completer(_machines, CompletionItem("", type="file")),
    _completer(_passes),
    _completer(_nodes),
    _completer(_layers),
)
