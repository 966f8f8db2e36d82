"""Inputs and outputs that no array of numbers holds: in artefacts, in files, in verification, on every target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import npuc
from npuc.errors import DataError, NpucError
from npuc.program import Port
from npuc.regions.composite import target_of
from npuc.running import program_inputs
from npuc.samples.loading import load, save, varied_samples
from npuc.samples.structured import objects
from tests.cli.process import npuc as command
from tests.compiled import program_of
from tests.onnx_models import parse

TARGETS = ("easynpu", "nvdla-small", "bm1684")
HEAD = "a = Conv<pads = [1, 1, 1, 1]>(x, w)\n r = Relu(a)"
CASES = {
    "an extent that depends on values": ("int64[2, n] y",
                                          "s = ReduceMax<axes = [0, 1, 2], keepdims = 0>(r)\n o = Round(s)\n"
                                          "m = Unsqueeze(o, zero)\n y = NonZero(m)", Port("y", (2, -1), "int64")),
    "a sequence": ("seq(tensor(float)) y", "y = SplitToSequence<axis = 3, keepdims = 1>(r)",
                   Port("y", (), "object", "seq(tensor(float))")),
    "strings": ("string[1,8,1,1] y", "g = GlobalMaxPool(r)\n m = Greater(g, zero_f)\n i = Cast<to = 6>(m)\n"
                "y = Cast<to = 8>(i)", Port("y", (1, 8, 1, 1), "string")),
    "an optional value": ("optional(tensor(float)) y", "y = Optional(r)",
                          Port("y", (), "object", "optional(tensor(float))")),
}  # fmt: skip


def _model(case: str) -> onnx.ModelProto:
    output, body, _ = CASES[case]
    constants = "<int64[1] zero = {0}, float zero_f = {0}>"
    text = f"g (float[1,8,6,6] x) => (float[1] y) {constants} {{ {HEAD}\n {body} }}"
    model = parse(text, w=(8, 8, 3, 3))
    kind = output.split()[0]
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    made = {
        "int64[2,": helper.make_tensor_type_proto(TensorProto.INT64, [2, None]),
        "seq(tensor(float))": helper.make_sequence_type_proto(tensor),
        "string[1,8,1,1]": helper.make_tensor_type_proto(TensorProto.STRING, [1, 8, 1, 1]),
        "optional(tensor(float))": helper.make_optional_type_proto(tensor),
    }[kind]
    model.graph.output[0].type.CopyFrom(made)
    return model


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_outputs_of_any_type_are_described_written_and_verified(case: str, target: str, tmp_path: Path) -> None:
    program = program_of(_model(case), tmp_path, target)
    assert program.outputs == (CASES[case][2],)
    assert {each["place"] for each in program.manifest["report"]["partitions"]} == {"npu", "host"}
    x = np.random.default_rng(4).normal(1, 2, (3, 1, 8, 6, 6)).astype(np.float32)
    found = npuc.load(tmp_path / "out.npu").run(x)["y"]
    session: Any = onnxruntime.InferenceSession((tmp_path / "m.onnx").read_bytes())
    for at, sample in enumerate(x):
        (wanted,) = session.run(["y"], {"x": sample})
        given = found[at]
        if case == "a sequence":
            assert len(given) == len(wanted) == 6 and given[0].shape == wanted[0].shape
            assert np.corrcoef(np.ravel(given), np.ravel(wanted))[0, 1] > 0.95
        elif case == "strings":
            assert (np.ravel(given) == wanted.ravel()).all()
        else:
            assert given.dtype == wanted.dtype and given.ndim in (wanted.ndim, wanted[0].ndim)
    report = npuc.verify(tmp_path / "m.onnx", npuc.load(tmp_path / "out.npu"))
    assert report["status"] == "ok" and report["bit_exact"] in (True, None)


def test_values_survive_a_file(tmp_path: Path) -> None:
    values = {
        "ragged": objects([np.ones((2, n), np.float32) * n for n in (1, 3)]),
        "sequence": objects([[np.arange(3), np.arange(2)], []]),
        "absent": objects([None, [np.float32(2)]]),
        "words": objects([np.array(["a", "\u00e9"], object), np.array(["", "b c"], object)]),
        "maps": objects([[{1: 0.5, 2: 0.25}], [{7: 1.0}]]),
        "plain": np.arange(4).reshape(2, 2),
    }
    save(tmp_path / "v.npz", values)
    with np.load(tmp_path / "v.npz", allow_pickle=False) as found:
        assert {"ragged/0", "ragged/1", "sequence/lengths", "sequence/0/1", "words/1", "plain"} <= {*found}
        assert found["absent/lengths"].tolist() == [-1, 1] and found["sequence/lengths"].tolist() == [2, 0]
        assert found["maps/0/0/keys"].tolist() == [1, 2] and found["maps/1/0/values"].tolist() == [1.0]
        assert found["words/1"].tolist() == ["", "b c"] and found["ragged/1"].shape == (2, 3)


STRINGS = "g (string[n] x) => (string[m] y) { y = Concat<axis = 0>(x, x) }"


def test_a_program_that_reads_strings_runs_from_a_file(tmp_path: Path) -> None:
    program = program_of(parse(STRINGS), tmp_path)
    assert program.inputs == (Port("x", (-1,), "string"),)
    np.savez(tmp_path / "x.npz", x=np.array([["a", "\u00e9t\u00e9"], ["b", "c"]]))
    command("run", tmp_path / "out.npu", "--data", tmp_path / "x.npz", "-o", tmp_path / "y.npz").done()
    with np.load(tmp_path / "y.npz") as found:
        assert found["y"][0].tolist() == ["a", "\u00e9t\u00e9", "a", "\u00e9t\u00e9"]
        assert found["y"][1].tolist() == ["b", "c", "b", "c"]
    assert command("verify", tmp_path / "m.onnx", tmp_path / "out.npu", "--json").json["outputs"][0]["exact"]
    save(tmp_path / "z.npz", {"x": objects([np.array(["a"], object), np.array(["b", "c", "d"], object)])})
    loaded = load([tmp_path / "z.npz"], program_inputs(program))
    assert [each.shape for each in loaded.inputs["x"]] == [(1,), (3,)]
    np.savez(tmp_path / "n.npz", x=np.zeros((2, 3)))
    with pytest.raises(DataError, match="float64"):
        load([tmp_path / "n.npz"], program_inputs(program))


def test_a_program_that_reads_a_sequence_runs_from_a_file_and_has_no_synthetic_samples(tmp_path: Path) -> None:
    model = parse("g (float[1] x) => (float[n] y) { y = ConcatFromSequence<axis = 0>(x) }")
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    model.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(tensor))
    samples = {"x": objects([[np.ones(1, np.float32), np.zeros(2, np.float32)], [np.ones(2, np.float32)]])}
    save(tmp_path / "x.npz", samples)
    with pytest.raises(DataError, match="no tensor"):
        program_of(model, tmp_path)
    program = program_of(model, tmp_path, calibration=[tmp_path / "x.npz"])
    loaded = load([tmp_path / "x.npz"], program_inputs(program))
    found = target_of(program).runner(program)(loaded.inputs)["y"]
    assert [each.tolist() for each in found] == [[1, 0, 0], [1, 1]]
    with pytest.raises(DataError, match="no tensor"):
        varied_samples(program_inputs(program))


def test_tensors_without_elements_are_verified(tmp_path: Path) -> None:
    model = parse("g (float[0,3] x, float[2,3] z) => (float[2,3] y) { y = Concat<axis = 0>(x, z) }")
    program_of(model, tmp_path)
    report = npuc.verify(tmp_path / "m.onnx", npuc.load(tmp_path / "out.npu"))
    assert report["status"] == "ok"


def test_a_network_without_inputs_is_run_by_the_host(tmp_path: Path) -> None:
    text = "g () => (float[2] y) { c = Constant<value_floats = [1.0, 2.0]>()\n y = Neg(c) }"
    program = program_of(parse(text), tmp_path)
    assert target_of(program).runner(program)({})["y"].tolist() == [[-1, -2]]


def test_integers_of_dynamic_scales_that_leave_the_network_are_those_of_the_sample(tmp_path: Path) -> None:
    text = "g (float[6] x) => (uint8[6] y, float s) { y, s, z = DynamicQuantizeLinear(x) }"
    program = program_of(parse(text), tmp_path)
    x = np.array([[0, 2, -3, -2, 1.34, 0.4]], np.float32)
    found = target_of(program).runner(program)({"x": x})
    # by hand: s = (2 + 3) / 255, z = round(3 / s) = 153, y = round(x / s) + z
    assert found["y"].tolist() == [[153, 255, 0, 51, 221, 173]] and found["y"].dtype == np.uint8
    np.testing.assert_allclose(found["s"], [5 / 255], rtol=1e-6)


SAME = 'auto_pad = "SAME_UPPER"'
PADDED = {
    # by hand: 8 and 7 in steps of 1; windows of 5 reach 2 over each border, of 3 without dilations 1
    f"MaxPool <{SAME}, dilations = [2, 2], kernel_shape = [3, 3]> (x)": "pads [2, 2, 2, 2] by ONNX's text",
    f"MaxPool <{SAME}, dilations = [2, 2], kernel_shape = [1, 1]> (x)": None,
    f"MaxPool <{SAME}, kernel_shape = [3, 3]> (x)": None,
    # in steps of 4 windows of 3 and of 2 both end within 8 and 7
    f"MaxPool <{SAME}, dilations = [2, 2], kernel_shape = [2, 2], strides = [4, 4]> (x)": None,
    f"AveragePool <{SAME}, dilations = [1, 2], kernel_shape = [1, 2]> (x)": "pads [0, 1, 0, 1] by ONNX's text",
    # 8 * 3 rows, but windows of 2 that begin 3 apart end after 23
    f"ConvTranspose <{SAME}, strides = [3, 3]> (x, v)": "output of [24, 21] by ONNX's text, and one of [23, 20]",
    f"ConvTranspose <{SAME}, strides = [2, 3]> (x, v)": "output of [16, 21] by ONNX's text, and one of [16, 20]",
    f"ConvTranspose <{SAME}, strides = [2, 2]> (x, v)": None,
    f"ConvTranspose <{SAME}, strides = [3, 3], output_padding = [1, 1]> (x, v)": None,
    f"ConvTranspose <{SAME}, strides = [3, 3], dilations = [2, 2]> (x, v)": None,
    "ConvTranspose <output_shape = [24, 21], strides = [3, 3]> (x, v)": None,
}
"""Automatic padding, and what is said where ONNX's text and onnxruntime read it differently."""


@pytest.mark.parametrize("denied", [False, True])
@pytest.mark.parametrize("text", PADDED)
def test_padding_that_is_read_in_two_ways_is_refused(text: str, denied: bool) -> None:
    """On the host, too; everything else has the shape that onnxruntime gives it."""
    op = text.partition(" ")[0]
    model = parse(f"g (float[1,3,8,7] x) => (y) {{ y = {text} }}", v=(3, 3, 2, 2))
    model.opset_import[0].version = 19
    x = np.random.default_rng(0).standard_normal((2, 1, 3, 8, 7)).astype(np.float32)
    deny = (op,) if denied else ()
    if (said := PADDED[text]) is not None:
        with pytest.raises(NpucError, match="E112") as caught:
            npuc.compile(model, "bm1684", precision="fp32", deny=deny)
        assert said in str(caught.value) and "write out pads" in str(caught.value)
        return
    program = npuc.compile(model, "bm1684", precision="fp32", deny=deny)
    session: Any = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = np.concatenate([session.run(None, {"x": each})[0] for each in x])
    np.testing.assert_allclose(program.run(x)["y"], wanted, rtol=1e-4, atol=1e-5)
