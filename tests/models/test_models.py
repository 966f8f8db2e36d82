"""Every network of npuc.models is a sound ONNX model of the shape it promises, the same on every call."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from npuc.models import MODELS, PUBLIC, detector
from npuc.models.builder import NetworkBuilder, explicit_pads
from npuc.models.digits import FOLDER
from npuc.models.exported import ExportedBuilder
from tests.files import arrays, script

SHAPES = {
    "autoencoder": ((1, 640), (1, 640)), "bc_resnet": ((1, 1, 40, 61), (1, 12)),
    "detector": ((1, 3, 64, 64), (1, 6, 8, 8)), "digits": ((1, 1, 8, 8), (1, 10)),
    "ds_cnn": ((1, 1, 49, 10), (1, 12)), "lenet": ((1, 1, 28, 28), (1, 10)),
    "mobilenet_v1_025": ((1, 3, 96, 96), (1, 2)), "mobilenet_v2": ((1, 3, 224, 224), (1, 1000)),
    "residual_awkward": ((1, 3, 17, 23), (1, 7)), "resnet8": ((1, 3, 32, 32), (1, 10)),
    "small_cnn": ((1, 3, 64, 64), (1, 10)), "unet_small": ((1, 1, 32, 32), (1, 1, 32, 32)),
}  # fmt: skip


def _run(model: onnx.ModelProto, x: Any) -> Any:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x})[0]


def _parameters(model: onnx.ModelProto) -> int:
    floats = (w for w in model.graph.initializer if w.data_type == onnx.TensorProto.FLOAT)
    return sum(int(np.prod(w.dims)) for w in floats)


def _largest_map(model: onnx.ModelProto, op: str) -> tuple[int, ...]:
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in inferred.graph.value_info}
    return max((shapes[n.output[0]] for n in model.graph.node if n.op_type == op), key=np.prod)


def test_every_model_is_listed_here() -> None:
    assert set(MODELS) == set(SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_runs_from_its_input_shape_to_its_output_shape(name: str) -> None:
    given, expected = SHAPES[name]
    y = _run(MODELS[name](), np.random.default_rng(1).standard_normal(given).astype(np.float32))
    assert y.shape == expected
    assert np.isfinite(y).all()


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_has_the_same_bytes_every_time(name: str) -> None:
    first = MODELS[name]().SerializeToString()
    if name == "detector":
        detector.train.cache_clear()
        detector.body.cache_clear()
    assert MODELS[name]().SerializeToString() == first


@pytest.mark.parametrize("name", SHAPES)
def test_maps_keep_their_size_through_the_network(name: str) -> None:
    given, _ = SHAPES[name]
    y = _run(MODELS[name](), np.random.default_rng(1).standard_normal(given).astype(np.float32))
    assert 0.02 < float(y.std()) < 20


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_network_has_the_same_bytes_every_time_and_outputs_that_vary(name: str) -> None:
    model = PUBLIC[name]()
    assert PUBLIC[name]().SerializeToString() == model.SerializeToString()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    x = np.random.default_rng(1).normal(0.3, 1, (2, *given.shape)).astype(np.float32)
    for first, second in zip(*(session.run(None, {given.name: each}) for each in x), strict=True):
        assert np.isfinite(first).all()
        assert first.std() > 0
        assert (first != second).any()


@pytest.mark.parametrize("target", ["easynpu", "nvdla-full", "bm1684", "bm1684 int8"])
def test_a_public_network_compiles_to_a_right_program_that_the_npu_runs_whole(target: str) -> None:
    bench = script("benchmarks/public_networks.py")
    row = bench.row("keyword_spotting", PUBLIC["keyword_spotting"](), target)
    assert row.within and row.share == 1.0 and row.decibels > 20


def test_a_shape_that_an_exported_node_does_not_have_is_an_error() -> None:
    net = ExportedBuilder("n", 0)
    with pytest.raises(ValueError, match=r"n0_Relu has the shape \(1, 2\), not \(1, 3\)"):
        net.node("Relu", [net.input((1, 2))], (1, 3))


def test_bc_resnet_has_the_largest_map_of_the_easynpu_document() -> None:
    assert _largest_map(MODELS["bc_resnet"](), "Conv") == (1, 16, 20, 61)


@pytest.mark.parametrize(
    ("name", "count"),
    # MLPerf Tiny's summaries; its ResNet-8 has 240 biases more, in front of batch normalisations
    [("resnet8", 78_666 - 240), ("lenet", 61_706), ("autoencoder", 269_992)],
)
def test_the_number_of_parameters_is_that_of_the_published_network(name: str, count: int) -> None:
    assert _parameters(MODELS[name]()) == count


def test_bc_resnet_has_the_9_2_thousand_trained_parameters_of_the_paper() -> None:
    trained = [w for w in MODELS["bc_resnet"]().graph.initializer if not w.name.endswith(("mean", "var", "shape"))]
    assert sum(int(np.prod(w.dims)) for w in trained) == 9_232


def test_same_padding_puts_the_odd_element_at_the_end() -> None:
    # DS-CNN's first layer: 49x10, kernel 10x4, stride 2 -> 25x5 (TensorFlow's SAME)
    assert explicit_pads((49, 10), (10, 4), (2, 2), "same") == [4, 1, 5, 1]


def test_two_seeds_give_different_weights_in_the_same_network() -> None:
    def build(seed: int) -> onnx.ModelProto:
        net = NetworkBuilder("n", seed)
        return net.finish(net.conv(net.input((1, 2, 5, 5)), 3, 3))

    a, b = build(0), build(1)
    assert a.graph.node == b.graph.node
    assert a.graph.initializer[0].raw_data != b.graph.initializer[0].raw_data


def test_digits_is_right_on_at_least_97_5_percent_of_its_test_images() -> None:
    test = arrays(FOLDER / "digits_test.npz")
    model = MODELS["digits"]()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    logits: Any = [session.run(None, {"input": x[np.newaxis].astype(np.float32)})[0] for x in test["x"]]
    assert np.mean(np.concatenate(logits).argmax(axis=1) == test["y"]) >= 0.975


def test_digits_calibrates_with_images_that_do_not_occur_in_the_test() -> None:
    calibration, test = (arrays(FOLDER / f"digits_{part}.npz")["x"] for part in ("calibration", "test"))
    assert calibration.shape == (128, 1, 8, 8)
    assert test.shape == (500, 1, 8, 8)
    assert not {x.tobytes() for x in calibration} & {x.tobytes() for x in test}


def test_digits_is_small() -> None:
    sizes = {path.name: path.stat().st_size for path in Path(FOLDER).glob("digits*.*")}
    assert sizes["digits.onnx"] < 100_000
    assert sizes["digits_test.npz"] + sizes["digits_calibration.npz"] < 20_000


def test_digits_fits_the_default_easynpu() -> None:
    # words of 16 bytes: Ci*Hk*Wk*ceil(Co/16) + 5*ceil(Co/16) a layer, 1,536 in all; the fully connected layer
    # reads the map [2, 2, 32]
    convs = [(1, 16), (16, 16), (16, 32), (32, 32)]
    weights = {tuple(w.dims) for w in MODELS["digits"]().graph.initializer if len(w.dims) in (2, 4)}
    assert weights == {(Co, Ci, 3, 3) for Ci, Co in convs} | {(10, 128)}
    words = sum((9 * Ci + 5) * (Co // 16) for Ci, Co in convs) + 128 + 5
    assert words == 1180 <= 1536


def test_importing_the_registry_does_not_import_onnx() -> None:
    import subprocess
    import sys

    code = "import sys, npuc.models; sys.exit('onnx' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
