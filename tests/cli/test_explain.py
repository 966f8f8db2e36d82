"""`npuc explain`: from a node to its instructions, and from an instruction to its nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npuc.account import nodes_named
from npuc.errors import ArtefactError
from npuc.reports.explanation import other_names
from tests.cli.process import SYNTHETIC, Digits, WriteModel, compiled, npuc

NETWORK = """g (float[1,16,8,8] x) => (float[1,4] y) {
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w)
    b = Relu(a)
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (b, w)
    d = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (c, w)
    e = Add(d, b)
    f = Conv <kernel_shape = [8, 8]> (e, v)
    g = Flatten(f)
    y = Softmax(g)
}"""


@pytest.fixture
def program(write: WriteModel, tmp_path: Path) -> Path:
    compiled(write(NETWORK, w=(16, 16, 3, 3), v=(4, 16, 8, 8)), tmp_path / "o").done()
    return tmp_path / "o"


def _explained(program: Path, node: object) -> Any:
    return npuc("explain", program, node, "--json").json


def test_a_fused_node_leads_to_the_layer_that_computes_it_and_to_the_pass_that_fused_it(program: Path) -> None:
    found = _explained(program, "Relu_1")
    assert found["nodes"] == ["Conv_0", "Relu_1"]
    assert [each["pass"] for each in found["passes"]] == ["fuse_activation"]
    (layer,) = found["layers"]
    assert layer["tile_candidates"] > 1 and layer["cycles"] >= layer["ideal_cycles"] > 0
    words = [entry["text"].split()[0] for entry in found["instructions"]]
    assert "conv_relu" in " ".join(words)


def test_an_instruction_leads_back_to_its_nodes(program: Path) -> None:
    listing = npuc("dump", program, "--json").json["instructions"]
    for entry in listing:
        found = _explained(program, entry["index"])
        assert set(entry["nodes"]) <= set(found["nodes"])
        assert entry["index"] in [each["index"] for each in found["instructions"]]


def test_a_result_that_a_window_reads_is_said_to_lie_in_memory_for_that(program: Path) -> None:
    (tensor,) = _explained(program, "Conv_2")["tensors"]
    assert tensor["readers"] == ["Conv_3"] and "'Conv_3' reads a window of it" in tensor["kept"]


def test_so_it_is_by_a_convolution_of_another_target(write: WriteModel, tmp_path: Path) -> None:
    model = write(NETWORK, w=(16, 16, 3, 3), v=(4, 16, 8, 8))
    npuc("compile", *SYNTHETIC, model, "--target", "nvdla-small", "-O0", "-o", tmp_path / "o").done()
    (tensor,) = _explained(tmp_path / "o", "Conv_2")["tensors"]
    assert tensor["readers"] == ["Add_4"]  # which is fused with Conv_3
    assert "'Add_4' reads a window of it" in tensor["kept"]


def test_addresses_and_times_are_inside_the_memory_and_the_run(program: Path) -> None:
    report = npuc("diff", program, program, "--json").json
    assert report["same"]
    buffers = _explained(program, "Relu_1")["buffers"]
    assert buffers and all(each["from_cycle"] < each["to_cycle"] for each in buffers)
    assert {each["bytes"] for each in buffers} == {8 * 8 * 16}  # one word a pixel


def test_a_host_step_is_explained_by_its_reason(program: Path) -> None:
    found = _explained(program, "Softmax_7")
    assert [(each["op"], each["place"]) for each in found["account"]] == [("Softmax", "host")]
    assert found["layers"] == [] and [each["code"] for each in found["account"][0]["problems"]] == ["W204"]
    assert "Softmax 'Softmax_7': on the host" in npuc("explain", program, "Softmax_7").done()


def test_an_unknown_name_is_refused_with_the_closest_one(program: Path, digits: Digits) -> None:
    assert "Did you mean 'Relu_1'?" in npuc("explain", program, "Relu_11").refused("E508")
    npuc("explain", digits.program, "999999").refused("E508")


def test_with_the_model_the_errors_of_a_node_are_those_of_verify(digits: Digits) -> None:
    command = ("--model", digits.model, "--data", digits.few)
    found = npuc("explain", digits.program, "n0_Conv", *command, "--json").json
    verified = npuc("verify", digits.model, digits.program, "--data", digits.few, "--json").json
    (layer,) = [each for each in verified["layers"] if "n0_Conv" in each["nodes"]]
    (tensor,) = [each for each in found["tensors"] if each["float"] == layer["name"]]
    assert tensor["entire"] == layer["entire"] and tensor["single"] == layer["single"]
    text = npuc("explain", digits.program, "n0_Conv", *command).done()
    assert f"  error {layer['entire']['sqnr_db']:.1f} dB, cosine" in text
    assert "--model" in npuc("explain", digits.program, "n0_Conv", "--data", digits.few).usage()


def test_a_node_on_the_host_leads_to_its_region_and_to_the_reason(write: WriteModel, tmp_path: Path) -> None:
    network = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        k = Constant <value = int32 {1}> ()
        s = CumSum(a, k)
        y = Relu(s)
    }"""
    compiled(write(network, w=(4, 4, 3, 3)), tmp_path / "o").done()
    told = npuc("explain", tmp_path / "o", "CumSum_2").done()
    assert "CumSum 'CumSum_2': on the host, host/region_0.onnx" in told and "  CumSum: " in told
    npuc("report", tmp_path / "o", "-o", tmp_path / "o.html").done()
    assert "host/region_0.onnx" in (tmp_path / "o.html").read_text(encoding="utf-8")


def _named(asked: str, listing: list[dict[str, Any]]) -> set[str]:
    return nodes_named((), asked, other_names({}, {}, listing), listing)


FUSED = "model/relu;model/a/Conv2D;model/b/Conv2D;model/c/Conv2D1"


@pytest.mark.parametrize(
    "asked", ["model/relu", "model/a/Conv2D", "a/Conv2D", "b/Conv2D", "model/c/Conv2D", "b", "t:0", "0", FUSED]
)
def test_a_part_of_a_fused_name_is_enough(asked: str) -> None:
    listing = [{"index": 0, "nodes": [FUSED], "tensor": "t:0"}, {"index": 1, "nodes": ["m/pool"], "tensor": None}]
    assert _named(asked, listing) == {FUSED}


def test_the_last_of_fused_names_wins_and_an_ambiguous_part_is_refused() -> None:
    listing = [{"index": 0, "nodes": ["a;b"], "tensor": None}, {"index": 1, "nodes": ["b;c/x"], "tensor": None}]
    listing.append({"index": 2, "nodes": ["d/x"], "tensor": None})
    assert _named("b", listing) == {"a;b"}
    with pytest.raises(ArtefactError, match="2 names have the part 'x'"):
        _named("x", listing)
    with pytest.raises(ArtefactError, match="Did you mean 'm/conv_11'"):
        _named("m/conv_12", [{"index": 0, "nodes": ["m/relu;m/conv_11"], "tensor": None}])


def test_a_tensor_of_the_host_leads_to_its_nodes_and_to_those_that_keep_it_there(
    write: WriteModel, tmp_path: Path
) -> None:
    text = """g (float[1,16,8,8] x) => (float[1,16,8,8] y) {
        a = Conv(x, w) s = Sin(a) r = Relu(s)
        t = Transpose <perm = [0, 1, 3, 2]> (r) u = Cos(t) y = Conv(u, w) }"""
    compiled(write(text, w=(16, 16, 1, 1)), tmp_path / "o").done()
    (found,) = _explained(tmp_path / "o", "r")["host_tensors"]
    assert (found["from"]["node"], [each["node"] for each in found["to"]]) == ("Relu_2", ["Transpose_3"])
    assert found["from"]["code"] == found["to"][0]["code"] == "W201"
    assert [(each["node"], each["code"]) for each in found["kept_by"]] == [("Sin_1", "E201"), ("Cos_4", "E201")]
    told = npuc("explain", tmp_path / "o", "r").done()
    assert "kept on the host by Sin 'Sin_1': the operator is not known;" in told
    assert _explained(tmp_path / "o", "Conv_0")["host_tensors"] == []
    assert _explained(tmp_path / "o", "Sin_1")["host_tensors"][0]["tensor"] == "s"
