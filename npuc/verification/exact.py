"""The values that a program approximates: outputs as the user's file gives them, inner tensors as npuc reads.

Some elements of outputs jump: at a threshold or a tie, rounding decides what they are. A comparison, a choice of
the largest, or a rounding to steps turns an error in the last bit into any other value. How many elements of a few
samples meet that is chance, and tells nothing about accuracy. The model itself shows them: all its results are
moved by random parts of their values, and by the same parts a FINER-th as large. What depends smoothly on them
moves that much less, what jumps does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from npuc.frontend.model import ImportedModel
from npuc.ir import Array
from npuc.program import Program
from npuc.reference import values_of
from npuc.regions.graphs import nodes_behind, region_model
from npuc.regions.planning import import_network
from npuc.regions.witnesses import foreign_session
from npuc.target import Options
from npuc.verification.equivalence import Original
from npuc.verification.metrics import Jumping
from npuc.verification.original import MOVED, OF_LARGEST, STEPS, JudgedModel

Values = Mapping[str, Array]


class Exact:
    """The model of a program under onnxruntime.

    The outputs are those of the file, untouched. The network as npuc reads it has the tensors of branches,
    functions and rewritten nodes as well; the compile has proved it. inside: that network, for a program that is a
    part of another: its outputs are inner tensors. Raises ModelError (E105) if onnxruntime refuses one of both.
    """

    def __init__(
        self, model: Path, program: Program, tensors: Sequence[str], inside: ImportedModel | None = None
    ) -> None:
        """tensors: beside the outputs; those that no node of the model writes are left out."""
        outputs = [port.name for port in program.outputs]
        self.original = Original(model, program.bound, program.images) if inside is None else None
        network = read_network(model, program) if inside is None else inside
        asked = [*(outputs if inside else ()), *tensors]
        inner = [name for name in asked if name in network.producers and (inside or name not in outputs)]
        self.inner = [name for name in dict.fromkeys(inner) if name in network.producers[name].writes]
        self.names = [*dict.fromkeys([*outputs, *self.inner])]
        self._run: Any = None
        if self.inner:
            self._run = foreign_session(region_model(network, nodes_behind(network, self.inner), self.inner))
            self._fed = {each.name for each in self._run.get_inputs()}

    def __call__(self, feed: Values) -> dict[str, Array]:
        """The tensors `names` on a sample. Raises ModelError (E105) if onnxruntime cannot run it."""
        found = {} if self.original is None else self.original.run(feed)
        if self._run is not None:
            found |= values_of(self._run, self.inner, {name: feed[name] for name in self._fed})
        return found

    def jumping(self, precision: str) -> Jumping | None:
        """What finds the elements that jump; None inside a program, and for integers, whose steps are coarser."""
        if self.original is None or precision not in PARTS:
            return None
        return partial(jumping, self.original.form, precision)

    @property
    def substitute(self) -> str:
        """What computes the outputs in onnxruntime's place, and why; empty while that runs the model."""
        return "" if self.original is None else self.original.form.substitute

    def read_as(self, feed: Values) -> list[dict[str, Any]]:
        """Every rewrite that means something else than the file, with its distance from it on a sample.

        sqnr_db: null without noise, or where onnxruntime refuses the file; wrong: whether it is more than the
        noise of the model's own number formats. Raises ModelError (E105) if onnxruntime contradicts itself.
        """
        assert self.original is not None
        wanted = self.original.run(feed)
        self.original.expect_one_meaning(feed, wanted)
        found, wrong = self.original.judge_rewrites(feed, wanted)
        told = dict.fromkeys([*self.original.read_as, *found, *filter(None, [wrong])])
        return [{"rewrite": name, "sqnr_db": found.get(name), "wrong": name == wrong} for name in told]


def read_network(model: Path, program: Program) -> ImportedModel:
    """The units of a program's model, for the shapes and bound inputs that the program has."""
    shapes = {port.name: port.shape for port in program.inputs if min(port.shape, default=0) > 0}
    return import_network(model, Options(bind=tuple(program.bound.items()), input=program.images), shapes)


PARTS = {"fp16": 2.0**-9, "fp32": 2.0**-14}
"""How far results are moved, by the program's format: 4 times what fp16 rounds, 1,000 times what fp32 does."""
FINER = 16.0
DRAWS = 16
"""The number of random movements: an element that one in two moves jumps in all but 2^-16 of the cases."""
SMOOTH = 2.0
"""How far the two movements of an element that does not jump may be from proportional."""
FACTOR = 1.5
"""Permitted error of an element, as a multiple of its largest jump."""


def jumping(
    form: JudgedModel,
    precision: str,
    feed: Mapping[str, Array],
    wanted: Mapping[str, Array],
    found: Mapping[str, Array],
) -> dict[str, Array]:
    """The elements of outputs whose difference is a jump, as a mask each.

    precision: of the program, which is a key of PARTS. wanted, found: tensors of numbers in one shape each. Raises
    ModelError (E105) if onnxruntime cannot run the model with its results moved.
    """
    names = [*wanted]
    jumps = {name: np.zeros(each.shape) for name, each in wanted.items()}
    parts = dict.fromkeys(MOVED, PARTS[precision]) | {STEPS: MOVED[STEPS]}
    coarse, fine = (
        form.perturbed_runner(names, {kind: each / by for kind, each in parts.items()}) for by in (1.0, FINER)
    )
    for draw in range(DRAWS):
        far, near = (_distance(moved(feed, draw), wanted) for moved in (coarse, fine))
        for name in names:
            jumps[name] = np.maximum(jumps[name], _jump(far[name], near[name], wanted[name]))
    apart = _distance(found, wanted)
    return {name: (apart[name] > 0) & (apart[name] <= FACTOR * jumps[name]) for name in names}


def _jump(far: Array, near: Array, exact: Array) -> Array:
    """How far each element jumps, given how far both movements move it; 0 where these are proportional."""
    least = OF_LARGEST * np.abs(exact).max(initial=0)
    smooth = np.isfinite(far) & (far <= SMOOTH * FINER * near) & (FINER * near <= SMOOTH * far)
    return np.where(smooth | (far <= least), 0.0, far)


def _distance(one: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, Array]:
    """How far each element is; infinitely, where a tensor has another shape, so that no element is the same."""
    with np.errstate(all="ignore"):
        return {
            name: np.abs(one[name].astype(np.float64) - each)
            if one[name].shape == each.shape
            else np.full(each.shape, np.inf)
            for name, each in other.items()
        }
