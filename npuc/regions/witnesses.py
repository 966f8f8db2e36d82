"""Sessions of a user's model as a reference: onnxruntime, or what takes its place where that does not run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuc.frontend import import_model
from npuc.frontend.reading import parse_model
from npuc.ir import Array, Graph
from npuc.onnx_files.external_data import without_weights
from npuc.onnx_files.standby import EVALUATOR, INTERPRETER, Evaluated, Interpreted, Standby, inline_weights
from npuc.reference import NO_WEIGHTS, session
from npuc.system.confinement import Unconfined, isolate

if TYPE_CHECKING:
    import onnx


def foreign_session(model: onnx.ModelProto, folder: Path | None = None, *, few_runs: bool = False) -> Standby:
    """A session of a user's model, confined; its heavy constants are moved out of the given model and shared.

    folder: of its external data. Raises ModelError as `session` and `without_weights`.
    """
    return standing(*without_weights(model, folder), few_runs=few_runs)


def file_session(path: Path, *, few_runs: bool = False) -> Standby:
    """The same of a file, which onnxruntime reads itself."""

    def read(kind: Callable[..., Any]) -> Any:
        return kind(*without_weights(parse_model(path, whole=False), path.parent))

    return Standby(
        lambda: session(path, few_runs=few_runs, confined=True),
        {name: partial(isolate, partial(read, kind)) for name, kind in KINDS.items()},
    )


def standing(
    model: onnx.ModelProto | bytes,
    weights: Mapping[str, Array] = NO_WEIGHTS,
    *,
    confined: bool = True,
    few_runs: bool = False,
) -> Standby:
    """A session as `session` opens it, in whose place onnx's evaluator steps, and then npuc's interpreter."""
    place = isolate if confined else Unconfined
    return Standby(
        lambda: session(model, weights, few_runs=few_runs, confined=confined),
        {name: partial(place, partial(kind, model, weights)) for name, kind in KINDS.items()},
    )


class _Imported(Evaluated):
    """A model as npuc reads it, before any pass, under npuc's interpreter."""

    def __init__(self, model: onnx.ModelProto | bytes, weights: Mapping[str, Array]) -> None:
        self.model = inline_weights(model, weights)
        self.describe(self.model)
        self.read: tuple[Mapping[str, tuple[int, ...]], Graph] | None = None
        """The shapes of the last feed, and the graph for them."""

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """These outputs, or all. Raises NpucError for what npuc does not read."""
        shapes = {name: value.shape for name, value in feeds.items()}
        if self.read is None or self.read[0] != shapes:
            self.read = shapes, import_model(self.model, None, shapes)
        graph = self.read[1]
        return Interpreted(graph, graph.outputs).run(names, feeds)


KINDS: Mapping[str, Callable[..., Any]] = {EVALUATOR: Evaluated, INTERPRETER: _Imported}
"""What takes onnxruntime's place, in order."""
