"""`npuc quantize` and `npuc accuracy`: a QDQ model, and shares of right answers with their confidence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from npuc.verification.judging.metric import interval, paired_difference
from tests.cli.process import Digits, npuc
from tests.files import arrays
from tests.onnx_models import parse


def test_all_computations_of_the_digits_are_counted(digits: Digits) -> None:
    found = npuc("accuracy", digits.model, digits.program, "--data", digits.few, "--json").json
    data = arrays(digits.few)
    session = onnxruntime.InferenceSession(str(digits.model))
    name = session.get_inputs()[0].name
    images = data[name] if name in data else data["x"]
    right = [
        session.run(None, {name: each.reshape(session.get_inputs()[0].shape)})[0].argmax() == label
        for each, label in zip(images.astype(np.float32), data["y"], strict=True)
    ]
    assert found["samples"] == len(right)
    assert found["fp32"]["top1"] == np.mean(right)
    for row in ("integer", "simulator"):
        assert found[row]["agreement"] >= 0.95
        assert found[row]["interval"][0] <= found[row]["top1"] <= found[row]["interval"][1]
        assert found[row]["top5"] >= found[row]["top1"]
    assert found["integer"] == found["simulator"]


def test_data_without_labels_are_refused(digits: Digits, tmp_path: Path) -> None:
    data = arrays(digits.few)
    del data["y"]
    np.savez(tmp_path / "x.npz", **data)
    printed = npuc("accuracy", digits.model, digits.program, "--data", tmp_path / "x.npz", "--json")
    assert printed.code == 1
    assert printed.json["errors"][0]["code"] == "E401"
    assert "labels" in printed.json["errors"][0]["reason"]


def test_labels_that_are_no_classes_are_refused_by_accuracy_and_noted_by_verify(
    digits: Digits, tmp_path: Path
) -> None:
    with np.load(digits.few) as file:
        np.savez(tmp_path / "x.npz", x=file["x"], y=np.array(["one", "two", "three", "four"]))
    command = (digits.model, digits.program, "--data", tmp_path / "x.npz")
    assert "no class numbers" in npuc("accuracy", *command).refused("E401")
    verified = npuc("verify", *command, "--json")
    assert verified.json["task"] is None and verified.err.startswith("note: ") and "left out" in verified.err


def test_a_bound_input_is_a_constant_of_the_model(tmp_path: Path) -> None:
    """The data lack it, and onnxruntime could not run the model."""
    text = "g (float[1,2,4,4] x, float k) => (float[1,2,4,4] y) { a = Relu(x) y = Mul(a, k) }"
    model, out, data = (tmp_path / name for name in ("m.onnx", "m.npu", "x.npz"))
    onnx.save(parse(text), model)
    np.savez(data, x=np.random.default_rng(4).normal(0.3, 1, (4, 2, 4, 4)).astype(np.float32))
    npuc("compile", model, "--target", "bm1684", "--precision", "fp32", "--bind", "k=2", "-o", out).done()
    found = npuc("accuracy", model, out, "--data", data, "--metric", "regression", "--json").json
    assert found["samples"] == 4
    assert found["simulator"]["l1"] < 1e-5
    # nothing else computes the bits of a program in floating point
    assert found["simulated"] == {"samples": 4, "bit_exact": None, "others": None}
    command = ("accuracy", model, out, "--data", data, "--metric", "regression")
    assert "fp32" in npuc(*command, "--simulate", "2").usage()
    assert npuc(*command, "--simulate", "all", "--json").json == found
    assert "fp32" in npuc("run", out, "--data", data, "-o", tmp_path / "y.npz", "--integer").usage()


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "bm1684"])
@pytest.mark.parametrize("denied", [(), ("--deny", "c")])
def test_the_integer_network_gives_what_the_words_give(
    target: str, denied: tuple[str, ...], tmp_path: Path
) -> None:
    """Also of the parts around a host region, on as many samples as are not simulated."""
    nodes = "a = Conv(x, w) b = Relu(a) c = Relu(b) d = Conv(c, w) y = Relu(d)"
    text = f"g (float[1,4,6,6] x) => (float[1,4,6,6] y) {{ {nodes} }}"
    random = np.random.default_rng(4)
    w = random.normal(0, 0.5, (4, 4, 1, 1)).astype(np.float32)
    model = parse(text, w=w)
    for node in model.graph.node:
        node.name = node.output[0]
    path, out, data = (tmp_path / name for name in ("m.onnx", "m.npu", "x.npz"))
    onnx.save(model, path)
    np.savez(data, x=random.normal(0, 1, (11, 4, 6, 6)).astype(np.float32))
    npuc(
        "compile", path, "--target", target, "--precision", "int8", "--calibration", data, *denied, "-o", out
    ).done()
    for option, name in (((), "words.npz"), (("--integer",), "integers.npz")):
        npuc("run", out, "--data", data, "-o", tmp_path / name, *option).done()
    np.testing.assert_array_equal(arrays(tmp_path / "words.npz")["y"], arrays(tmp_path / "integers.npz")["y"])
    found = npuc("accuracy", path, out, "--data", data, "--metric", "regression", "--json").json
    assert found["simulated"] == {"samples": 8, "bit_exact": True, "others": "integer network"}
    assert found["integer"] == found["simulator"]
    command = ("run", out, "--data", data, "-o", tmp_path / "y.npz", "--integer")
    chip = "vendor" if target == "bm1684" else "own"
    assert "--chip-model" in npuc(*command, "--chip-model", chip, "--trace", "t.vcd").usage()


def test_the_interval_is_wilson_s() -> None:
    # Source: Newcombe, "Two-sided confidence intervals for the single proportion", 1998, table I, method 3
    for right, count, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        assert interval(right, count) == pytest.approx((low, high), abs=5e-5)


def test_a_paired_difference_counts_the_samples_on_which_one_alone_is_right() -> None:
    first = np.array([True] * 90 + [False] * 10)
    second = first.copy()
    second[:5] = False
    second[95:] = True
    mean, low, high = paired_difference(first, second)
    assert mean == 0
    assert low == -high
    # (5 + 5 + 1) / 102 discordant pairs: 1.96 * sqrt(11 / 102 / 102)
    assert high == pytest.approx(1.96 * (11 / 102 / 102) ** 0.5, rel=1e-3)
