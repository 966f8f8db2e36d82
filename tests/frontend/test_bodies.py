"""Bodies of If and Loop, as onnxruntime runs them: external data, names used twice, outputs without a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import npuc
from npuc.errors import ModelError
from npuc.ir import Array
from npuc.reference import session

X = np.random.default_rng(3).normal(size=(1, 4)).astype(np.float32)
K = np.array(False)


def port(name: str, shape: Sequence[int] | None, element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def outside(folder: Path, name: str, file: str, seed: int) -> onnx.TensorProto:
    """A matrix in a file beside the model."""
    value = np.random.default_rng(seed).normal(size=(4, 4)).astype(np.float32)
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_bytes(value.tobytes())
    tensor = TensorProto(name=name, data_type=1, dims=[4, 4], data_location=1)
    tensor.external_data.add(key="location", value=file)
    return tensor


def branch(nodes: Sequence[onnx.NodeProto], output: str, held: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, "b", [], [port(output, None)], held)


def either(then: onnx.GraphProto, other: onnx.GraphProto, output: str) -> onnx.NodeProto:
    return helper.make_node("If", ["k"], [output], then_branch=then, else_branch=other)


def saved(path: Path, nodes: Sequence[onnx.NodeProto], *, constant: bool, held: Sequence[Any] = ()) -> None:
    """A model of x, and of a condition k which is a constant or an input."""
    known = [numpy_helper.from_array(K, "k"), numpy_helper.from_array(np.array(3), "n"), *held]
    inputs = [port("x", [1, 4])] if constant else [port("x", [1, 4]), port("k", [], TensorProto.BOOL)]
    nodes = [*nodes, helper.make_node("Relu", ["s"], ["y"])]
    graph = helper.make_graph(nodes, "g", inputs, [port("y", None)], known if constant else known[1:])
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


def expect_same(path: Path, *, constant: bool) -> None:
    """bm1684 computes in floats as onnxruntime does, and so does verify."""
    fed: dict[str, Array] = {"x": X} if constant else {"x": X, "k": K}
    (expected,) = session(path).run(None, fed)
    program = npuc.compile(path, "bm1684", level="0")
    (found,) = program.run({name: each[None] for name, each in fed.items()}).values()
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)
    assert npuc.verify(path, program)["status"] == "ok"


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("kind", ["If", "Loop", "Constant", "beside"])
@pytest.mark.parametrize("away", [True, False])
def test_external_data_in_bodies_is_read_from_any_folder(
    kind: str, constant: bool, away: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "with blanks"
    folder.mkdir()
    w, v = outside(folder, "w", "w.bin", 1), outside(folder, "v", "sub dir/v.bin", 2)
    times = [helper.make_node("MatMul", ["x", each], ["m"]) for each in ("w", "v")]
    cases: dict[str, list[onnx.NodeProto]] = {
        "If": [either(branch(times[:1], "m", [w]), branch(times[1:], "m", [v]), "s")],
        "Loop": [
            helper.make_node("Loop", ["n", "", "x"], ["s"], body=helper.make_graph(
                [helper.make_node("MatMul", ["c", "v"], ["d"]), helper.make_node("Identity", ["go"], ["on"])],
                "b", [port("i", [], 7), port("go", [], 9), port("c", [1, 4])],
                [port("on", [], 9), port("d", [1, 4])], [v],
            ))
        ],
        "Constant": [
            helper.make_node("Constant", [], ["w"], value=w), helper.make_node("MatMul", ["x", "w"], ["s"])
        ],
        "beside": [helper.make_node("MatMul", ["x", "w"], ["s"])],
    }  # fmt: skip
    saved(folder / "m.onnx", cases[kind], constant=constant, held=[w] if kind == "beside" else ())
    (tmp_path / "linked").symlink_to(folder, target_is_directory=True)
    monkeypatch.chdir(tmp_path if away else folder)
    for path in (Path("linked/m.onnx"), folder / "m.onnx") if away else (Path("m.onnx"),):
        expect_same(path, constant=constant)


def test_external_data_in_a_body_that_is_missing_or_outside_is_refused(tmp_path: Path) -> None:
    w = outside(tmp_path, "w", "w.bin", 1)
    times = [helper.make_node("MatMul", ["x", "w"], ["m"])]
    for place in ("../w.bin", "gone.bin", "/etc/hostname"):
        w.external_data[0].value = place
        saved(tmp_path / "m.onnx", [either(branch(times, "m", [w]), branch(times, "m", [w]), "s")], constant=True)
        with pytest.raises(ModelError) as caught:
            npuc.compile(tmp_path / "m.onnx", "bm1684")
        assert caught.value.problems[0].code == "E108"


def held(factor: float) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(np.full((1, 4), factor, np.float32), "m")]


def nested(inner: str, held_inside: float | None, held_outside: float) -> list[onnx.NodeProto]:
    """An If within an If; both branches hold `m`, and the inner ones write `inner`."""
    inside = [] if held_inside is None else held(held_inside)
    low = either(
        branch([helper.make_node("Neg", ["m"], [inner])], inner, inside),
        branch([helper.make_node("Mul", ["x", "m"], [inner])], inner, inside),
        "q",
    )
    nodes = [helper.make_node("Add", ["x", "m"], ["t"]), low, helper.make_node("Sub", ["q", "t"], ["o"])]
    return [
        either(branch([helper.make_node("Abs", ["x"], ["u"])], "u"), branch(nodes, "o", held(held_outside)), "s")
    ]


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("inside", [None, 3.0])
@pytest.mark.parametrize("name", ["u", "v", "m2"])
def test_nested_ifs_keep_their_own_tensors_apart(
    name: str, inside: float | None, constant: bool, tmp_path: Path
) -> None:
    saved(tmp_path / "m.onnx", nested(name, inside, 5.0), constant=constant)
    expect_same(tmp_path / "m.onnx", constant=constant)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("name", ["t", "x", "m"])
def test_a_body_that_writes_a_tensor_around_it_again_is_refused(name: str, constant: bool, tmp_path: Path) -> None:
    saved(tmp_path / "m.onnx", nested(name, None, 5.0), constant=constant)
    with pytest.raises(ModelError, match="written twice") as caught:
        npuc.compile(tmp_path / "m.onnx", "bm1684")
    assert caught.value.problems[0].tensor == name
    with pytest.raises(ModelError):
        session(tmp_path / "m.onnx")


def test_a_node_whose_outputs_have_no_name_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], [""]), helper.make_node("Abs", ["x"], ["s"])]
    saved(tmp_path / "m.onnx", nodes, constant=True)
    with pytest.raises(ModelError, match="no output has a name"):
        npuc.compile(tmp_path / "m.onnx", "bm1684")
