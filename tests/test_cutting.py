"""Parts of models between named tensors, against onnxruntime on the whole model and onnx's own extractor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import npuc
from npuc.errors import ArtefactError, ModelError
from npuc.ir import Array
from tests.cli.process import npuc as command
from tests.onnx_models import network, node

SHAPE = (1, 3, 8, 8)


def build(folder: Path, batch: int | str = 1) -> Path:
    """x -> a -> b (Relu) -> c -> y, with b -> d beside it, and z = c + x."""
    random = np.random.default_rng(1)
    weights = {name: random.normal(0, 0.4, (3, 3, 3, 3)).astype(np.float32) for name in ("v", "w", "u")}
    nodes = [
        node("Conv", "x v", "a", pads=[1, 1, 1, 1]),
        node("Relu", "a", "b"),
        node("Conv", "b w", "c", pads=[1, 1, 1, 1]),
        node("MaxPool", "b", "d", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "c u", "y", pads=[1, 1, 1, 1]),
        node("Add", "c x", "z"),
    ]
    model = network(nodes, {"x": [batch, *SHAPE[1:]]}, weights, "y z d")
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "net.onnx")
    return folder / "net.onnx"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    values = np.random.default_rng(2).normal(size=(6, *SHAPE[1:])).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=values)
    return tmp_path / "data.npz"


def whole(path: Path, names: list[str], samples: Array) -> list[Array]:
    """Tensors of the whole model under onnxruntime: (samples, 1, ...)."""
    model = onnx.load(path)
    known = {each.name for each in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return [np.stack(each) for each in zip(*(session.run(names, {"x": x[None]}) for x in samples), strict=True)]


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(["b"], ["y", "d"]), ([], ["c"]), (["c", "x"], ["z"]), (["a"], ["b"]), (["b"], ["c", "y"])],
)
@pytest.mark.parametrize("batch", [1, "N"])
def test_a_part_computes_the_tensors_of_the_whole_model(
    inputs: list[str], outputs: list[str], batch: int | str, tmp_path: Path, data: Path
) -> None:
    path, shapes = build(tmp_path, batch), {"x": SHAPE} if batch == "N" else None
    part = npuc.compile(
        path, "bm1684", precision="fp32", inputs=inputs, outputs=",".join(outputs), input_shapes=shapes
    )
    read = inputs or ["x"]
    assert [port.name for port in part.program.inputs] == read
    assert [port.name for port in part.program.outputs] == outputs
    samples = np.load(data)["x"]
    given = whole(path, read, samples) if read != ["x"] else [samples[:, None]]
    found = part.run(dict(zip(read, (each[:, 0] for each in given), strict=True)))
    for name, wanted in zip(outputs, whole(path, outputs, samples), strict=True):
        np.testing.assert_allclose(found[name].reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)
    report = npuc.verify(path, part, str(data))
    assert report["status"] == "ok" and report["samples"] == len(samples)


def test_a_part_is_calibrated_on_what_the_whole_model_computes(tmp_path: Path, data: Path) -> None:
    """The scales are those of the part that onnx cuts out, calibrated on onnxruntime's values of its input."""
    path, alone = build(tmp_path), tmp_path / "alone.onnx"
    onnx.utils.extract_model(str(path), str(alone), ["b"], ["y"])
    (b,) = whole(path, ["b"], np.load(data)["x"])
    ours = npuc.compile(path, "nvdla-small", inputs="b", outputs="y", calibration=str(data))
    by_hand = npuc.compile(alone, "nvdla-small", calibration={"b": b[:, 0]})
    given = npuc.compile(path, "nvdla-small", inputs="b", outputs="y", calibration={"b": b[:, 0]})
    assert ours.program.files == by_hand.program.files == given.program.files
    assert npuc.verify(path, ours, str(data))["bit_exact"] is True
    assert npuc.accuracy(path, ours, str(data), metric="regression")["status"] == "ok"


@pytest.mark.parametrize(
    ("inputs", "outputs", "tensor", "said"),
    [
        (["q"], ["y"], "q", "no node"), (["b"], ["q"], "q", "no node"), (["w"], ["y"], "w", "no node"),
        (["b"], ["x"], "x", "no node"), (["d"], ["y"], "d", "no output"), (["b"], ["z"], "x", "also needs"),
        (["b"], ["b", "y"], "b", "input and output"), (["B"], ["y"], "B", "Did you mean 'b'"),
    ],
)  # fmt: skip
def test_names_that_cut_no_part_out_are_refused(
    inputs: list[str], outputs: list[str], tensor: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        npuc.compile(build(tmp_path), "nvdla-small", inputs=inputs, outputs=outputs)
    problem = caught.value.problems[0]
    assert (problem.code, problem.tensor) == ("E109", tensor) and (problem.limit or problem.remedy)


def test_a_part_is_verified_against_its_own_model_only(tmp_path: Path, data: Path) -> None:
    path = build(tmp_path)
    part = npuc.compile(path, "nvdla-small", inputs="b", outputs="y", calibration=str(data))
    model = onnx.load(path)
    weights = numpy_helper.to_array(model.graph.initializer[1])
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(weights * 2, "w"))
    with pytest.raises(ArtefactError, match="compiled from another model"):
        npuc.verify(model, part, str(data))


def test_the_commands_compile_and_verify_a_part(tmp_path: Path, data: Path) -> None:
    path, output = build(tmp_path), tmp_path / "part.npu"
    cut = ("--inputs", "b", "--outputs", "y,d", "--calibration", data)
    command("compile", path, "--target", "nvdla-small", "-o", output, *cut).done()
    command("verify", path, output, "--data", data).done()
    command("accuracy", path, output, "--data", data, "--metric", "regression").done()
    command("quantize", path, "--target", "nvdla-small", "-o", tmp_path / "part.onnx", *cut).done()
    assert [each.name for each in onnx.load(tmp_path / "part.onnx").graph.input] == ["b"]
