"""The outputs of the whole model judge its parts: of a program, and of the networks that a part may become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from npuc import api
from npuc.account import account_of
from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.program import Program
from npuc.reports.summaries import compile_summary
from npuc.samples.loading import save
from npuc.text.escaping import escape_report
from tests.compiled import program_of
from tests.onnx_models import parse

LOGARITHM = """
g (float[1,4,8,8] x) => (float[1,8,8,8] y) <float tiny = {0.0001}> {
    [first] a = Conv(x, v)
    b = Mul(a, a)
    c = Add(b, tiny)
    d = Log(c)
    [second] e = Conv<pads = [1, 1, 1, 1]>(d, w)
    [third] y = Conv<pads = [1, 1, 1, 1]>(e, u)
}
"""
"""A logarithm of small numbers: 8 bits of the first layer lose the result, those of the others do not."""


def _compiled(folder: Path, target: str, **options: Any) -> tuple[Program, Array, Array]:
    """The program, what it computes on the samples that calibrated it, and what onnxruntime does."""
    random = np.random.default_rng(3)
    model = parse(LOGARITHM, v=(4, 4, 1, 1), w=(8, 4, 3, 3), u=(8, 8, 3, 3))
    x = (random.normal(0.2, 1, (12, 1, 4, 8, 8)) ** 3).astype(np.float32)
    save(folder / "x.npz", {"x": x})
    program = program_of(
        model, folder, target, {"level": "1", "deny": ("Log", "Add"), **options}, [folder / "x.npz"]
    )
    session: Any = onnxruntime.InferenceSession((folder / "m.onnx").read_bytes())
    wanted = np.stack([session.run(["y"], {"x": each})[0] for each in x])
    return program, api.load(folder / "out.npu").run(x)["y"].reshape(wanted.shape), wanted


def _decibels(found: Array, wanted: Array) -> float:
    return float(10 * np.log10(np.square(wanted).sum() / np.square(found - wanted).sum()))


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "bm1684"])
def test_the_part_and_the_node_that_lose_the_outputs_are_told(target: str, tmp_path: Path) -> None:
    program, found, wanted = _compiled(tmp_path, target, **({"precision": "int8"} if target == "bm1684" else {}))
    told = program.manifest["report"]["whole"]
    assert told["samples"] == 4
    assert told["sqnr_db"] == pytest.approx(_decibels(found, wanted), abs=3)
    first, second = told["parts"]
    assert (first["path"], first["node"]) == ("npu/part_0", "first")
    assert second["sqnr_db"] > 25 > first["sqnr_db"]
    lines = compile_summary(escape_report(program.manifest["report"]), (), tmp_path, verbose=False).splitlines()
    at = next(number for number, line in enumerate(lines) if "the whole model:" in line)
    assert "--deny NODE" in lines[at] and lines[at + 1].endswith("dB, most lost by 'first'")


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small"])
def test_mixed_precision_moves_the_part_that_loses_the_outputs(target: str, tmp_path: Path) -> None:
    _, poor, wanted = _compiled(tmp_path, target)
    (tmp_path / "mixed").mkdir()
    program, found, _ = _compiled(tmp_path / "mixed", target, mixed=True)
    placed = {each.node: each.place for each in account_of(program.manifest)}
    assert (placed["first"], placed["second"], placed["third"]) == ("host", "npu", "npu")
    assert _decibels(found, wanted) > _decibels(poor, wanted) + 10


def test_integers_that_the_host_cannot_use_are_hopeless(tmp_path: Path) -> None:
    """In steps of 1/32, 3.4999 is 3.5: rounded it is an index that the table has not."""
    model = parse(
        "g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[4] table = {1, 2, 3, 5}> {"
        " a = Conv(x, one)\n r = Round(a)\n i = Cast<to = 7>(r)\n y = Gather(table, i) }",
        one=np.ones((1, 1, 1, 1), np.float32),
    )
    x = np.random.default_rng(3).uniform(0, 3.4, (12, 1, 1, 4, 4)).astype(np.float32)
    x[..., 0] = 3.4999
    save(tmp_path / "x.npz", {"x": x})
    program = program_of(
        model, tmp_path, "easynpu", {"level": "1", "scales": "power-of-two"}, [tmp_path / "x.npz"]
    )
    assert program.manifest["report"]["whole"]["sqnr_db"] == -120
    with pytest.raises(ArtefactError, match="E502"):
        api.load(tmp_path / "out.npu").run(x)
