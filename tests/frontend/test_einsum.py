"""Einsum, as `torch.einsum` is exported: what it computes is what numpy computes; the NPU runs its products."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.interpreter import run
from npuc.regions.artefact import is_composite
from tests.compiled import checked, program_of
from tests.onnx_models import network, node


def _model(equation: str, *shapes: Sequence[int], constants: Sequence[int] = ()) -> onnx.ModelProto:
    """One Einsum; constants: the operands that are weights."""
    random = np.random.default_rng(2)
    weights = {f"x{at}": random.normal(0.2, 1, shapes[at]) for at in constants}
    inputs = {f"x{at}": shape for at, shape in enumerate(shapes) if at not in constants}
    names = " ".join(f"x{at}" for at in range(len(shapes)))
    return network([node("Einsum", names, "y", equation=equation)], inputs, weights)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", ((2, 3), (3, 4))),
        ("ij,jk", ((2, 3), (3, 4))),
        ("ij , kj -> ki", ((2, 3), (4, 3))),
        ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
        ("bhqk,bkhd->bqhd", ((2, 3, 4, 5), (2, 5, 3, 6))),
        ("bchw,bdhw->bcd", ((2, 3, 4, 5), (2, 6, 4, 5))),
        ("bchw,dc->bdhw", ((2, 3, 4, 5), (6, 3))),
        ("dc,bchw->bdhw", ((6, 3), (2, 3, 4, 5))),
        ("nctv,vw->nctw", ((2, 3, 4, 5), (5, 5))),
        ("nkctv,kvw->nctw", ((1, 2, 3, 4, 5), (2, 5, 6))),
        ("i,j->ij", ((3,), (4,))),
        ("i,j->ji", ((3,), (4,))),
        ("i,i->", ((3,), (3,))),
        ("bi,bi->b", ((2, 3), (2, 3))),
        ("bij,bj->bij", ((2, 3, 4), (2, 4))),
        ("bi,bk->bik", ((2, 3), (2, 4))),
        ("abc,cd->d", ((2, 3, 4), (4, 5))),
        ("ij,jk->i", ((2, 3), (3, 4))),
        ("bij->bji", ((2, 3, 4),)),
        ("bij->j", ((2, 3, 4),)),
        ("ba", ((2, 3),)),
    ],
)
def test_the_result_is_numpys(equation: str, shapes: Sequence[Sequence[int]]) -> None:
    random = np.random.default_rng(1)
    feeds = {f"x{at}": random.normal(0.3, 1, shape).astype(np.float32) for at, shape in enumerate(shapes)}
    found = run(import_model(_model(equation, *shapes)), feeds)["y"]
    np.testing.assert_allclose(found, np.einsum(equation, *feeds.values()), rtol=1e-5, atol=1e-5)
    for at in range(len(shapes) if len(shapes) > 1 else 0):
        model = _model(equation, *shapes, constants=[at])
        weights = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        known = {name: each for name, each in feeds.items() if name not in weights}
        wanted = np.einsum(equation, *({**feeds, **weights}[name] for name in feeds))
        np.testing.assert_allclose(run(import_model(model), known)["y"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ii->i", ((3, 3),)),
        ("...i->...", ((3, 3),)),
        ("ij,jk,kl->il", ((3, 3), (3, 3), (3, 3))),
        ("ij,jk->ik", ((2, 1), (3, 4))),
        ("ij,jk->iq", ((2, 3), (3, 4))),
        ("ijk,jk->i", ((2, 3), (3, 4))),
        ("ij->ii", ((2, 3),)),
    ],
)
def test_other_equations_are_refused(equation: str, shapes: Sequence[Sequence[int]]) -> None:
    with pytest.raises(NpucError) as refused:
        import_model(_model(equation, *shapes))
    assert refused.value.problems[0].code in ("E202", "E105")


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "bm1684"])
def test_a_product_with_a_weight_is_a_convolution(target: str, tmp_path: Path) -> None:
    program = program_of(_model("bchw,dc->bdhw", (1, 8, 6, 5), (12, 8), constants=[1]), tmp_path, target)
    assert not is_composite(program)
    assert program.manifest["report"]["macs"] == 12 * 8 * 30
    assert checked(program, tmp_path)["status"] == "ok"


def test_the_products_of_an_attention_run_on_bm1684(tmp_path: Path) -> None:
    program = program_of(_model("bqhd,bkhd->bhqk", (1, 7, 2, 8), (1, 9, 2, 8)), tmp_path, "bm1684")
    assert not is_composite(program)
    assert checked(program, tmp_path)["status"] == "ok"
