"""What npuc gets wrong is told as its own defect, with exit code 1, and never sends a node to the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

import npuc
from npuc.errors import ArtefactError, Defect, NpucError
from npuc.frontend import import_model
from npuc.frontend.importers import IMPORTERS
from npuc.ir import Graph
from npuc.regions import planning
from npuc.targets.easynpu.program import lowering
from tests.cli.process import SYNTHETIC
from tests.cli.process import npuc as command
from tests.onnx_models import parse

NET = """g (float[1,4,8,8] x) => (float[1,4,4,4] y) {
    a = Conv <pads = [1,1,1,1]> (x, w)
    y = MaxPool <kernel_shape = [2,2], strides = [2,2]> (a)
}"""


def fail(*_args: object, **_options: object) -> None:
    raise TypeError("a defect")


def in_an_importer(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(IMPORTERS, "MaxPool", fail)


def in_a_pass(patch: pytest.MonkeyPatch) -> None:
    def broken(graph: Graph) -> Graph:
        raise KeyError("a defect")

    patch.setattr(planning, "FLOAT_PASSES", (*planning.FLOAT_PASSES, broken))


def in_a_lowering(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lowering, "lower", fail)


def beyond_a_limit(patch: pytest.MonkeyPatch) -> None:
    def written(*_args: object, **_options: object) -> None:
        raise ArtefactError("E503", "a defect: a word beyond the machine")

    patch.setattr(lowering, "lower", written)


PLACES: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    in_an_importer: "MaxPool", in_a_pass: "in pass broken", in_a_lowering: "lowering the part",
    beyond_a_limit: "lowering the part",
}  # fmt: skip


@pytest.mark.parametrize(("plant", "told"), PLACES.items(), ids=[each.__name__ for each in PLACES])
def test_a_defect_is_one_block_with_its_own_code(
    plant: Callable[[pytest.MonkeyPatch], None], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    model = parse(NET, w=(4, 4, 3, 3))
    with pytest.raises(Defect, match=told) as caught:
        npuc.compile(model, "easynpu", calibration="synthetic")
    assert isinstance(caught.value.__cause__, TypeError | KeyError | ArtefactError)
    monkeypatch.delenv("NPUC_TRACEBACK")
    onnx.save(model, tmp_path / "m.onnx")
    for verb, *more in (("compile", *SYNTHETIC, "-o", tmp_path / "o"), ("check",)):
        asked = command(verb, tmp_path / "m.onnx", "--target", "easynpu", *more)
        assert told in asked.refused("E901") and "a defect" in asked.err
        (problem,) = command(verb, tmp_path / "m.onnx", "--target", "easynpu", *more, "--json").json["errors"]
        assert problem["code"] == "E901" and "report it" in problem["remedy"]
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("attributes", "inputs"),
    [({"perm": [0, 0, 1, 2]}, "x"), ({"perm": [0, 1, 2, 7]}, "x")],
    ids=["twice", "beyond"],
)
def test_a_malformed_node_is_the_users_even_if_an_importer_fails_on_it(
    attributes: dict[str, list[int]], inputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(IMPORTERS, "Transpose", fail)
    model = parse("g (float[1,4,8,8] x) => (float[a,b,c,d] y) { y = Identity(x) }")
    model.graph.node[0].CopyFrom(helper.make_node("Transpose", [inputs], ["y"], **attributes))
    with pytest.raises(NpucError, match="E105"):
        import_model(model)
