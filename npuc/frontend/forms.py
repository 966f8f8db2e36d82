"""The forms of a model on its way to the importers, so that each rewrite can be proved by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx

from npuc.frontend.dynamic import without_dynamic_quantisation
from npuc.frontend.importing import without_functions
from npuc.frontend.plain_forms import steps_first, with_activations_apart, with_dense_constants
from npuc.frontend.upgrading import upgrade
from npuc.frontend.widening import widen_model
from npuc.frozen import frozen


@frozen
class FrontendRewrite:
    """A change that the frontend makes to a whole model."""

    name: str
    apply: Callable[[onnx.ModelProto, Path | None], onnx.ModelProto]
    """Gives the same object if there is nothing to change. The folder holds external data."""
    deliberate: bool = False
    """Whether it means something else than the model, up to the noise of the model's own number format."""


REWRITES = (
    FrontendRewrite("its opset is converted", lambda model, _: upgrade(model)),
    FrontendRewrite("half precision is read as float32", lambda model, _: widen_model(model), deliberate=True),
    FrontendRewrite("sparse constants are made dense", with_dense_constants),
    FrontendRewrite("functions are replaced by their bodies", lambda model, _: without_functions(model)),
    FrontendRewrite(
        "dynamic quantisation is read as the values themselves",
        lambda model, _: without_dynamic_quantisation(model),
        deliberate=True,
    ),
    FrontendRewrite("activations of fused operators become nodes", lambda model, _: with_activations_apart(model)),
    FrontendRewrite("recurrent operators get their steps first", lambda model, _: steps_first(model)),
)
"""In the order in which they are made. Decisions: docs/decisions.md."""


def forms(model: onnx.ModelProto, folder: Path | None) -> Iterator[tuple[FrontendRewrite, onnx.ModelProto]]:
    """The model after each rewrite that changes it. Raises ModelError as the import does."""
    for rewrite in REWRITES:
        made = rewrite.apply(model, folder)
        if made is not model:
            yield rewrite, made
            model = made
