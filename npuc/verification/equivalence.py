"""Whether the graph after the passes is equivalent to the user's model: both run under onnxruntime, on samples.

The model is the file, untouched, with and without onnxruntime's optimisations; each rewrite of the frontend is
compared by itself. What may differ is told by the model's own noise (npuc.verification.original).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npuc.errors import ModelError
from npuc.frontend.forms import forms
from npuc.frontend.reading import parse_model
from npuc.images.description import Description
from npuc.ir import Array, Graph
from npuc.onnx_files.integer_products import PRODUCTS
from npuc.onnx_files.wire import may_contain
from npuc.reference import graph_session, integers_are_exact, present, values_of
from npuc.samples.loading import Samples
from npuc.verification.metrics import Difference
from npuc.verification.original import WHOLE, JudgedModel, Values

NO_VALUES: Mapping[str, float] = {}


class Original:
    """The user's model, as onnxruntime runs it, and the rewrites that the frontend makes.

    Where onnxruntime refuses the file (a network in bfloat16, for instance), the first form that it opens takes
    its place: `read_as` names the rewrites before that. Where it opens none, another evaluator runs the file
    (npuc.regions.witnesses). bound, images: as of Form. Raises ModelError (E105) if none does.
    """

    def __init__(
        self, path: Path, bound: Mapping[str, float] = NO_VALUES, images: Sequence[Description] = ()
    ) -> None:
        self.path, self.bound, self.images = path, bound, images
        self.rewrites = [*forms(parse_model(path, whole=False), path.parent)]
        self.read_as: list[str] = []
        self.form = self._first_that_runs()
        self.run, self.outputs = self.form.run, self.form.outputs
        products = may_contain(path, *(name.encode() for name in PRODUCTS))
        self.stable = products and not integers_are_exact(precise=False)
        """Whether onnxruntime is exact with its optimisations only: nothing else can be a second witness."""

    def _first_that_runs(self) -> JudgedModel:
        first = JudgedModel(self.path, self.path.parent, self.bound, self.images)
        if not first.substitute:
            return first
        for count, (_, model) in enumerate(self.rewrites, start=1):
            form = JudgedModel(model, self.path.parent, self.bound, self.images)
            if not form.substitute:
                self.read_as = [rewrite.name for rewrite, _ in self.rewrites[:count]]
                del self.rewrites[:count]
                return form
        return first

    def release(self) -> None:
        """Closes the sessions, which hold copies of the weights."""
        self.form.release()

    def expect_one_meaning(self, feed: Mapping[str, Array], wanted: Values) -> None:
        """Raises ModelError (E105) if onnxruntime without its optimisations gives other values than these."""
        if self.stable:
            return
        name = self.form.beyond(feed, wanted, self.form.run(feed, optimised=False))
        if name is not None:
            reason = "onnxruntime gives other values with its optimisations than without them"
            raise ModelError("E105", reason, tensor=name, remedy="use another version of onnxruntime")

    def judge_rewrites(
        self, feed: Mapping[str, Array], wanted: Values
    ) -> tuple[dict[str, float | None], str | None]:
        """The signal to noise in dB of each rewrite that means something else (None: none), and a wrong rewrite.

        Each is compared with the form before it; wanted: the model's outputs. Only noise of a form's own formats
        is right. Raises ModelError (E105) if onnxruntime does not run a form.
        """
        before, found = self.form, dict[str, float | None]()
        for rewrite, model in self.rewrites:
            after = JudgedModel(model, self.path.parent, self.bound, self.images)
            given = after.run(feed)
            if rewrite.deliberate:
                found[rewrite.name] = _sqnr(wanted, given)
            if before.beyond(feed, wanted, given) is not None:
                return found, rewrite.name
            before, wanted = after, given
        return found, None


def _sqnr(wanted: Values, found: Values) -> float | None:
    """Signal to noise in dB of the worst output; None if all are exact."""
    noise: list[float] = []
    for name, each in wanted.items():
        apart = Difference()
        apart.compare(each, found[name])
        if apart.sqnr_db is not None:
            noise.append(apart.sqnr_db)
    return min(noise, default=None)


def expected_outputs(model: Path, samples: Samples, images: Sequence[Description] = ()) -> dict[str, Array]:
    """The model's outputs under onnxruntime: (samples, elements) by name. images: as of Form.

    Raises ModelError if onnxruntime or npuc cannot read it.
    """
    original = Original(model, images=images)
    parts = [original.run(feed) for feed in samples.feeds()]
    return {name: np.stack([part[name].ravel() for part in parts]) for name in original.outputs}


class Equivalence:
    """A model and the graph that the passes made of it, ready to be run on samples.

    Raises ModelError (E105) if onnxruntime refuses the model.
    """

    def __init__(self, model: Path, graph: Graph, bound: Mapping[str, float] = NO_VALUES) -> None:
        self.original = Original(model, bound)
        self.graph, self.outputs = graph, list(graph.outputs)
        self.large = model.stat().st_size > WHOLE
        """Whether to avoid two copies of the weights in memory: each session is then closed after its run."""
        self.graph_after: Any = None

    def release(self) -> None:
        """Closes the sessions of the model and the graph, which hold copies of the weights."""
        self.original.release()
        self.graph_after = None

    def expected_outputs(self, feed: Mapping[str, Array]) -> Values:
        """The model's outputs on a sample. Raises ModelError (E105) if onnxruntime cannot run it."""
        return self.original.run(feed)

    def differing(self, feed: Mapping[str, Array], wanted: Values) -> str | None:
        """The first tensor of model and graph whose values differ on a sample; None if the outputs agree.

        wanted: the model's outputs.
        """
        session = self.graph_after or graph_session(self.graph, self.outputs, few_runs=True)
        self.graph_after = None if self.large else session
        found = values_of(session, self.outputs, feed)
        del session
        apart = self.original.form.beyond(feed, {name: wanted[name] for name in self.outputs}, found)
        return None if apart is None else self._first(feed) or apart

    def _first(self, feed: Mapping[str, Array]) -> str | None:
        """The first tensor, in the graph's order, that the model also has but with other values."""
        path = self.original.path
        model = self.original.rewrites[-1][1] if self.original.rewrites else parse_model(path)
        form = JudgedModel(model, path.parent, self.original.bound)
        names = present(model, [name for node in self.graph.nodes for name in node.outputs])
        try:
            wanted = form.of(names, feed)
        except ModelError:  # an inner tensor has a type that onnxruntime cannot output
            return None
        alike = {name: each for name, each in wanted.items() if each.shape == self.graph.shape(name)}
        session = graph_session(self.graph, [*alike])
        taken = {each.name for each in session.get_inputs()}
        found = values_of(session, [*alike], {name: feed[name] for name in taken})
        return form.beyond(feed, alike, found)
