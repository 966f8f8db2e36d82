"""What a target does not run, the host does: the program computes what onnxruntime does, part after part."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.compose import add_prefix_graph
from onnx.external_data_helper import set_external_data
from onnx.helper import make_graph, make_model, make_opsetid, make_tensor_value_info

from npuc import running
from npuc.account import account_of, groups, reasons
from npuc.errors import ArtefactError, DataError, NpucError
from npuc.program import Program, as_loaded, load
from npuc.regions.artefact import Contents, is_composite
from npuc.regions.composite import Composite, target_of
from npuc.samples.loading import Samples, synthetic
from npuc.target import Options, Request
from tests.bm1684.kernels import vendor_libraries
from tests.compiled import causes, checked, compilation, places, program_of
from tests.onnx_models import parse

C8 = {"w": (8, 8, 3, 3), "v": (8, 8, 3, 3)}
SAME = "pads = [1, 1, 1, 1]"
TARGETS = ("easynpu", "nvdla-small", "bm1684")

# where the foreign node stands -> the network, its weights, and what runs where
POSITIONS = {
    "front": (
        f"d = CumSum(x, k)\n a = Conv<{SAME}>(d, w)\n y = Relu(a)",
        [("host", ("CumSum",)), ("npu", ("Conv", "Relu"))],
    ),
    "end": (
        f"a = Conv<{SAME}>(x, w)\n b = Relu(a)\n y = CumSum(b, k)",
        [("npu", ("Conv", "Relu")), ("host", ("CumSum",))],
    ),
    "middle": (
        f"a = Conv<{SAME}>(x, w)\n d = CumSum(a, k)\n y = Conv<{SAME}>(d, v)",
        [("npu", ("Conv",)), ("host", ("CumSum",)), ("npu", ("Conv",))],
    ),
    "a branch, the other one on the NPU": (
        f"a = Conv<{SAME}>(x, w)\n d = CumSum(a, k)\n b = Conv<{SAME}>(a, v)\n y = Add(b, d)",
        [("npu", ("Conv", "Conv")), ("host", ("CumSum", "Add"))],
    ),
    "beside a short cut": (
        f"a = Conv<{SAME}>(x, w)\n d = CumSum(a, k)\n b = Conv<{SAME}>(d, v)\n y = Add(b, a)",
        [("npu", ("Conv",)), ("host", ("CumSum",)), ("npu", ("Conv",)), ("host", ("Add",))],
    ),
    "between layers that go to the host with it": (
        f"a = Conv<{SAME}>(x, w)\n b = CumSum(a, k)\n c = Relu(b)\n d = CumSum(c, k)\n e = Relu(d)\n"
        " y = CumSum(e, k)",
        [("npu", ("Conv",)), ("host", ("CumSum", "Relu", "CumSum", "Relu", "CumSum"))],
    ),
    "everywhere": ("d = CumSum(x, k)\n y = Sin(d)", [("host", ("CumSum", "Sin"))]),
}


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_foreign_node_goes_to_the_host_wherever_it_stands(position: str, name: str, tmp_path: Path) -> None:
    body, wanted = POSITIONS[position]
    shapes = {key: shape for key, shape in C8.items() if f", {key})" in body}
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) <int32 k = {{1}}> {{ {body} }}"
    program = program_of(parse(text, **shapes), tmp_path, name)
    assert places(program) == wanted
    report = checked(program, tmp_path)
    assert report["status"] == "ok" and report["bit_exact"] in (True, None)


FOREIGN = {
    "If": "z = ReduceSum<keepdims = 0>(a)\n zero = Constant<value = float {0}>()\n t = Greater(z, zero)\n"
    "d = If<then_branch = yes () => (float[1,8,6,6] p) { p = Sin(a) },"
    " else_branch = no () => (float[1,8,6,6] q) { q = Neg(a) }>(t)",
    "Loop": "n = Constant<value = int64 {3}>()\n on = Constant<value = bool {1}>()\n"
    "d = Loop<body = step (int64 i, bool c, float[1,8,6,6] h) => (bool e, float[1,8,6,6] g)"
    " { e = Identity(c)\n s = Sin(h)\n g = Add(s, a) }>(n, on, a)",
    "Scan": "d1 = Scan<num_scan_inputs = 1, body = step (float[8,6,6] i) => (float[8,6,6] o)"
    " { o = Sin(i) }>(a)\n d = Identity(d1)",
    "Sequence": "s = SequenceConstruct(a, a)\n one = Constant<value = int64 {1}>()\n d0 = SequenceAt(s, one)\n"
    "sh = Shape(a)\n d = Reshape(d0, sh)",
    "NonZero": "nz = NonZero(a)\n count = Size(nz)\n f = Cast<to = 1>(count)\n d = Mul(a, f)",
    "TopK": "three = Constant<value = int64[1] {6}>()\n d, i = TopK<axis = 3>(a, three)",
    "Einsum": 'd = Einsum<equation = "...w,...v->...w">(a, a)',
    "int64": "m = ArgMax<axis = 3, keepdims = 1>(a)\n f = Cast<to = 1>(m)\n d = Mul(a, f)",
    "float64": "p = Cast<to = 11>(a)\n q = Exp(p)\n d = Cast<to = 1>(q)",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_onnxruntime_loads_is_compiled(kind: str, tmp_path: Path) -> None:
    body = f"a = Conv<{SAME}>(x, w)\n {FOREIGN[kind]}\n b = Conv<{SAME}>(d, v)\n y = Relu(b)"
    model = parse(f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) {{ {body} }}", **C8)
    program = program_of(model, tmp_path)
    parts = places(program)
    assert parts[0][0] == "npu" and "Conv" in parts[0][1]
    assert any(place == "host" for place, _ in parts)
    assert checked(program, tmp_path)["bit_exact"]


def test_a_node_of_which_only_the_shape_is_read_is_in_no_region(tmp_path: Path) -> None:
    body = f"a = Conv<{SAME}>(x, w)\n t = Transpose<perm = [0, 2, 3, 1]>(a)\n n = Shape(t)\n s = CumSum(a, k)\n"
    body += f"b = Conv<{SAME}>(s, v)\n z = ConstantOfShape(n)\n p = Transpose<perm = [0, 3, 1, 2]>(z)\n"
    body += "c = CumSum(b, k)\n y = Add(c, p)"
    model = parse(f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) <int32 k = {{1}}> {{ {body} }}", **C8)
    program = program_of(model, tmp_path)
    assert not any("Transpose" in ops for _, ops in places(program))
    assert checked(program, tmp_path)["status"] == "ok"


def test_a_shape_known_at_run_time_only_stays_within_the_region(tmp_path: Path) -> None:
    body = f"a = Conv<{SAME}>(x, w)\n nz = NonZero(a)\n t = Transpose(nz)\n f = Cast<to = 1>(t)\n r = Relu(f)\n"
    body += "y = ReduceMean<axes = [0], keepdims = 0>(r)"
    program = program_of(parse(f"g (float[1,8,6,6] x) => (float[4] y) {{ {body} }}", w=C8["w"]), tmp_path)
    assert places(program)[0] == ("npu", ("Conv",)) and [place for place, _ in places(program)] == ["npu", "host"]
    assert "Relu" in places(program)[1][1]
    assert checked(program, tmp_path)["status"] == "ok"


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_recurrent_networks_run_on_the_host_and_their_products_are_counted(cell: str, tmp_path: Path) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[cell]
    body = f"h, last = {cell}<hidden_size = 5>(x, w, r)\n s = Squeeze(h, one)\n y = Relu(s)"
    text = f"g (float[7,1,3] x) => (float[7,1,5] y) <int64[1] one = {{1}}> {{ {body} }}"
    program = program_of(parse(text, w=(1, 5 * gates, 3), r=(1, 5 * gates, 5)), tmp_path)
    report = program.manifest["report"]
    assert report["macs"] == 7 * 5 * gates * (3 + 5) and report["npu_macs_share"] == 0
    assert checked(program, tmp_path)["outputs"][0]["exact"]


def test_token_ids_go_to_the_host(tmp_path: Path) -> None:
    body = f"e = Gather(table, x)\n t = Transpose<perm = [0, 3, 1, 2]>(e)\n a = Conv<{SAME}>(t, w)\n y = Relu(a)"
    model = parse(f"g (int64[1,6,6] x) => (float[1,8,6,6] y) {{ {body} }}", table=(50, 8), w=C8["w"])
    program = program_of(model, tmp_path)
    assert [place for place, _ in places(program)] == ["host", "npu"]
    ids = np.random.default_rng(0).integers(0, 50, (3, 1, 6, 6))
    assert checked(program, tmp_path, Samples({"x": ids}))["status"] == "ok"


def test_several_inputs_and_outputs_keep_their_names_types_and_order(tmp_path: Path) -> None:
    body = f"a = Conv<{SAME}>(x, w)\n d = CumSum(z, k)\n s = Add(a, d)\n b = Conv<{SAME}>(s, v)\n"
    body += "i = ArgMax<axis = 1>(d)\n same = Identity(a)"
    head = "g (float[1,8,6,6] z, float[1,8,6,6] x) => (int64[1,1,6,6] i, float[1,8,6,6] b, float[1,8,6,6] same)"
    program = program_of(parse(f"{head} <int32 k = {{1}}> {{ {body} }}", **C8), tmp_path)
    assert [port.name for port in program.inputs] == ["z", "x"]
    assert [(port.name, port.dtype) for port in program.outputs] == [
        ("i", "int64"), ("b", "float32"), ("same", "float32"),
    ]  # fmt: skip
    samples = synthetic(running.program_inputs(program), 2, seed=9)
    found = running.run_program(program, target_of(program), samples)
    session: Any = onnxruntime.InferenceSession((tmp_path / "m.onnx").read_bytes())
    for index, feed in enumerate(samples.feeds()):
        for name, wanted in zip(("i", "b", "same"), session.run(["i", "b", "same"], feed), strict=True):
            values = found[name][index].reshape(wanted.shape)
            assert values.dtype == wanted.dtype
            assert np.corrcoef(values.ravel(), wanted.ravel())[0, 1] > 0.99


def test_a_layer_that_does_not_fit_goes_to_the_host_and_each_of_two_alike(tmp_path: Path) -> None:
    body = "a = Conv(x, big)\n b = Conv<pads = [1, 1, 1, 1]>(a, w)\n y = Conv(b, big)"
    model = parse(f"g (float[1,8,1,2100] x) => (float[1,8,1,2100] y) {{ {body} }}", big=(8, 8, 1, 1), w=C8["w"])
    program = program_of(model, tmp_path, "easynpu")
    report = checked(program, tmp_path)
    assert report["status"] == "ok"


def test_the_bytes_that_cross_are_those_of_the_tensors(tmp_path: Path) -> None:
    body = f"a = Conv<{SAME}>(x, w)\n d = CumSum(a, k)\n y = Conv<{SAME}>(d, v)"
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) <int32 k = {{1}}> {{ {body} }}"
    program = program_of(parse(text, **C8), tmp_path)
    told = program.manifest["report"]["partitions"]
    tensor = 4 * 8 * 6 * 6
    assert [(each["bytes_in"], each["bytes_out"]) for each in told] == [(tensor, tensor)] * 3
    (reason,) = groups(reasons(account_of(program.manifest)))
    crossing = 2 * 8 * 6 * 6  # int8, there and back
    assert (reason["code"], reason["op"], reason["count"], reason["bytes"]) == ("E201", "CumSum", 1, crossing)
    assert [each["macs"] for each in told] == [8 * 36 * 72, 0, 8 * 36 * 72]


@pytest.mark.parametrize("name", TARGETS)
def test_one_foreign_node_in_a_residual_network_makes_two_parts_and_exact_bytes(name: str, tmp_path: Path) -> None:
    """A stem, a block whose first activation no target has, and a block that is left whole.

    By hand: the foreign node reads and writes 8 x 6 x 6 floats, and the short cut around it crosses beside them.
    """
    body = f"s0 = Conv<{SAME}>(x, w)\n s = Relu(s0)\n a0 = Conv<{SAME}>(s, v)\n a = Sin(a0)\n"
    body += f"b = Conv<{SAME}>(a, u)\n c = Add(b, s)\n d = Relu(c)\n"
    body += f"e0 = Conv<{SAME}>(d, v)\n e = Relu(e0)\n f = Conv<{SAME}>(e, u)\n g = Add(f, d)\n y = Relu(g)"
    model = parse(f"g (float[1,3,6,6] x) => (float[1,8,6,6] y) {{ {body} }}", w=(8, 3, 3, 3), v=C8["v"], u=C8["v"])
    program = program_of(model, tmp_path, name)
    told = program.manifest["report"]["partitions"]
    assert [each["place"] for each in told] == ["npu", "host", "npu"] and places(program)[1] == ("host", ("Sin",))
    image, tensor = 4 * 3 * 36, 4 * 8 * 36
    crossed = [(each["bytes_in"], each["bytes_out"]) for each in told]
    assert crossed == [(image, 2 * tensor), (tensor, tensor), (2 * tensor, tensor)]
    assert [each["macs"] for each in told] == [36 * 8 * 9 * (3 + 8), 0, 3 * 36 * 8 * 9 * 8]
    report = checked(program, tmp_path)
    assert report["status"] == "ok" and report["bit_exact"] in (True, None)


def _joined_reference(program: Program, folder: Path) -> onnx.ModelProto:
    """The parts' integer networks and the host's regions as one model: nothing of npuc joins or runs them."""
    nodes, constants = [], []
    for number, step in enumerate(Contents.of(program.manifest).steps):
        path = folder / step.path
        graph = onnx.load(path if step.kind == "host" else path / "reference.onnx").graph
        shown = [each for each in graph.output if each.name in step.outputs]
        del graph.output[:]
        graph.output.extend(shown)
        graph = add_prefix_graph(graph, f"{number}/", rename_inputs=False, rename_outputs=False)
        nodes, constants = [*nodes, *graph.node], [*constants, *graph.initializer]
    given, made = (
        [make_tensor_value_info(each.name, onnx.TensorProto.FLOAT, each.shape) for each in ports]
        for ports in (program.inputs, program.outputs)
    )
    whole = make_graph(nodes, "whole", given, made, constants)
    return make_model(whole, opset_imports=[make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("name", "chip"), [("easynpu", "own"), ("nvdla-full", "own"), ("bm1684", "own"), ("bm1684", "vendor")]
)
def test_all_parts_and_regions_agree_with_one_network_in_every_bit(name: str, chip: str, tmp_path: Path) -> None:
    """End to end: a difference in what crosses between parts and host would show, too."""
    assert chip != "vendor" or vendor_libraries()
    body = f"s = Conv<{SAME}>(x, w)\n a = Sin(s)\n b = Conv<{SAME}>(a, w)\n c = Add(b, s)\n d = Relu(c)\n"
    body += f"e = Cos(d)\n f = Conv<{SAME}>(e, v)\n h = Add(f, d)\n i = CumSum(h, k)\n y = Conv<{SAME}>(i, v)"
    types = "float[2,8,6,6]"
    model = parse(f"g ({types} x) => ({types} h, {types} y) <int64 k = {{2}}> {{ {body} }}", **C8)
    program = program_of(model, tmp_path, name, {"precision": "int8"})
    assert [each["place"] for each in program.manifest["report"]["partitions"]] == ["npu", "host"] * 3 + ["npu"]
    x = np.random.default_rng(4).normal(0.2, 1, (3, 2, 8, 6, 6)).astype(np.float32)
    found = target_of(program).runner(program, chip)({"x": x})
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    joined = _joined_reference(program, tmp_path / "out.npu").SerializeToString()
    session = onnxruntime.InferenceSession(joined, options)
    for at, sample in enumerate(x):
        for port, wanted in zip(program.outputs, session.run(None, {"x": sample}), strict=True):
            np.testing.assert_array_equal(found[port.name][at], wanted, strict=True)


def test_a_model_that_the_target_runs_is_the_program_it_always_was(tmp_path: Path) -> None:
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) {{ a = Conv<{SAME}>(x, w)\n y = Relu(a) }}"
    program = program_of(parse(text, w=C8["w"]), tmp_path)
    machine = target_of(program)
    assert not is_composite(program) and not isinstance(machine, Composite)
    alone = compilation(Request(tmp_path / "m.onnx", machine, Options(level="0"))).program
    alone = as_loaded(alone)
    assert dict(alone.files) == dict(program.files)
    changed = {key for key in program.manifest if alone.manifest.get(key) != program.manifest[key]}
    assert changed == {"report", "seal"}
    report = program.manifest["report"]
    assert report["npu_macs_share"] == 1 and [each["place"] for each in report["partitions"]] == ["npu"]


@pytest.mark.parametrize("asked", ["Relu", "Relu_1"])
def test_a_denied_layer_goes_to_the_host(asked: str, tmp_path: Path) -> None:
    body = f"a = Conv<{SAME}>(x, w)\n r = Relu(a)\n y = Conv<{SAME}>(r, v)"
    model = parse(f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) {{ {body} }}", **C8)
    program = program_of(model, tmp_path, options={"deny": (asked,)})
    assert places(program) == [("npu", ("Conv",)), ("host", ("Relu",)), ("npu", ("Conv",))]
    assert causes(program) == ["W202"]
    assert checked(program, tmp_path)["bit_exact"]


MAP, HALF, TURN = "float[1,8,6,6]", "float[1,4,6,6]", "Transpose<perm = [0, 2, 1, 3]>"
HEADS = f"b = Conv<{SAME}>(x, w)\n c = Conv<{SAME}>(x, v)\n s = Sigmoid(c)\n"
# outputs, what reads the Sigmoid, and whether its results are scores beside others
SCORES = {
    "joined": ("float[1,16,6,6] y", "y = Concat<axis = 1>(b, s)", True),
    "moved and joined": ("float[1,6,16,6] y", f"t = {TURN}(s)\n d = {TURN}(b)\n y = Concat<axis = 2>(t, d)", True),
    "an output beside another": (f"{MAP} s, {MAP} b", "", True),
    "the only output": (f"{MAP} y", "d = Add(b, c)\n y = Sigmoid(d)", False),
    "a gate": ("float[1,16,6,6] y", "m = Mul(s, b)\n y = Concat<axis = 1>(m, b)", False),
    "joined, and a gate": ("float[1,16,6,6] y", "m = Mul(s, b)\n y = Concat<axis = 1>(s, m)", False),
    "a part of a tensor": (f"{HALF} y, {HALF} p", "p, q = Split<axis = 1>(c)\n y = Sigmoid(q)", False),
    "an output that is read": (f"{MAP} s, {MAP} y", f"y = Conv<{SAME}>(s, v)", False),
}


@pytest.mark.parametrize("target", ["easynpu", "nvdla-full", "bm1684"])
@pytest.mark.parametrize(("outputs", "body", "host"), SCORES.values(), ids=SCORES)
def test_the_scores_of_a_detector_are_computed_in_fp32(
    outputs: str, body: str, host: bool, target: str, tmp_path: Path
) -> None:
    model = parse(f"g ({MAP} x) => ({outputs}) {{ {HEADS} {body} }}", **C8)
    made = program_of(model, tmp_path, target, options={"precision": "int8"})
    assert ("W205" in causes(made)) == host and checked(made, tmp_path)["status"] == "ok"


def test_scores_may_be_moved_any_number_of_times(tmp_path: Path) -> None:
    last = 1 << 10  # more than Python's recursion allows
    body = "\n".join(f"m{at + 1} = Transpose<perm = [0, 1, 3, 2]>(m{at})" for at in range(last))
    text = f"b = Conv<{SAME}>(x, w)\n m0 = Conv<{SAME}>(x, v)\n {body}\n s = Sigmoid(m{last})"
    made = program_of(parse(f"g ({MAP} x) => ({MAP} s, {MAP} b) {{ {text} }}", **C8), tmp_path)
    assert "W205" in causes(made)


@pytest.mark.parametrize("options", [{"precision": "int8", "strict": True}, {"precision": "fp16"}])
def test_scores_stay_on_the_npu_if_they_must_or_are_exact(options: dict[str, Any], tmp_path: Path) -> None:
    outputs, body, _ = SCORES["joined"]
    model = parse(f"g ({MAP} x) => ({outputs}) {{ {HEADS} {body} }}", **C8)
    assert not is_composite(program_of(model, tmp_path, "nvdla-full", options=options))


def test_what_is_denied_must_be_there(tmp_path: Path) -> None:
    model = parse("g (float[1,8,6,6] x) => (float[1,8,6,6] y) { y = Relu(x) }")
    with pytest.raises(NpucError, match="Did you mean 'Relu'") as refused:
        program_of(model, tmp_path, options={"deny": ("Rellu",)})
    assert refused.value.problems[0].code == "E109"


@pytest.mark.parametrize("asked", ["Neg", "Identity", "twice"])
def test_what_is_denied_may_be_folded_away(asked: str, tmp_path: Path) -> None:
    body = f"[twice] d = Neg(c)\n e = Identity(x)\n m = Mul(e, d)\n y = Conv<{SAME}>(m, w)"
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) <float c = {{1.5}}> {{ {body} }}"
    program = program_of(parse(text, w=C8["w"]), tmp_path, options={"deny": (asked,)})
    assert [place for place, _ in places(program)] == ["npu"]
    assert checked(program, tmp_path)["bit_exact"]


def test_the_host_can_be_refused(tmp_path: Path) -> None:
    model = parse("g (float[1,8,6,6] x) => (float[1,8,6,6] y) { y = Sin(x) }")
    with pytest.raises(NpucError) as refused:
        program_of(model, tmp_path, options={"strict": True})
    assert refused.value.problems[0].code == "E201"


def test_a_region_that_was_changed_is_refused_by_name(tmp_path: Path) -> None:
    program_of(parse("g (float[1,8] x) => (float[1,8] y) { y = Sin(x) }"), tmp_path)
    region = tmp_path / "out.npu" / "host" / "region_0.onnx"
    region.write_bytes(region.read_bytes().replace(b"Sin", b"Cos"))
    with pytest.raises(ArtefactError, match=r"host/region_0\.onnx is damaged"):
        load(tmp_path / "out.npu")


def test_a_region_may_name_no_file_outside(tmp_path: Path) -> None:
    model = parse("g (float[1,8] x) => (float[1,8] y) { y = Add(x, c) }", c=(8,))
    program = program_of(model, tmp_path, options={"deny": ("Add",)})
    region = onnx.load_model_from_string(program.files["host/region_0.onnx"])
    (constant,) = region.graph.initializer
    set_external_data(constant, "/etc/hostname", 0, 4)
    constant.ClearField("raw_data")
    files = {**program.files, "host/region_0.onnx": region.SerializeToString()}
    with pytest.raises(ArtefactError, match="outside the artefact"):
        target_of(program).runner(type(program)(program.manifest, files))


def test_running_opens_no_evidence(tmp_path: Path) -> None:
    body = f"a = Conv<{SAME}>(x, w)\n y = CumSum(a, k)"
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) <int32 k = {{1}}> {{ {body} }}"
    program = program_of(parse(text, w=C8["w"]), tmp_path)
    samples = synthetic(running.program_inputs(program), 2)
    wanted = running.run_program(program, target_of(program), samples)
    for name in ("graph.json", "npu/part_0/graph.json", "npu/part_0/reference.onnx"):
        (tmp_path / "out.npu" / name).unlink()
    again = load(tmp_path / "out.npu")
    np.testing.assert_array_equal(running.run_program(again, target_of(again), samples)["y"], wanted["y"])


def test_a_part_is_an_artefact_of_its_own(tmp_path: Path) -> None:
    body = f"a = Conv<{SAME}>(x, w)\n y = CumSum(a, k)"
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) <int32 k = {{1}}> {{ {body} }}"
    program_of(parse(text, w=C8["w"]), tmp_path)
    shutil.copytree(tmp_path / "out.npu" / "npu" / "part_0", tmp_path / "part")
    part = load(tmp_path / "part")
    assert [port.name for port in part.outputs] == ["a"] and not is_composite(part)


def test_samples_that_onnxruntime_cannot_run_are_named(tmp_path: Path) -> None:
    body = f"e = Gather(table, x)\n t = Transpose<perm = [0, 3, 1, 2]>(e)\n y = Conv<{SAME}>(t, w)"
    model = parse(f"g (int64[1,6,6] x) => (float[1,8,6,6] y) {{ {body} }}", table=(1, 8), w=C8["w"])
    with pytest.raises(DataError, match="sample 0: onnxruntime cannot run it"):
        program_of(model, tmp_path)


def test_samples_that_a_region_cannot_run_are_the_remedy(tmp_path: Path) -> None:
    body = f"e = Gather(table, x)\n t = Transpose<perm = [0, 3, 1, 2]>(e)\n y = Conv<{SAME}>(t, w)"
    model = parse(f"g (int64[1,6,6] x) => (float[1,8,6,6] y) {{ {body} }}", table=(2, 8), w=C8["w"])
    program = program_of(model, tmp_path)
    with pytest.raises(ArtefactError, match="out of data bounds") as refused:
        checked(program, tmp_path, Samples({"x": np.full((1, 1, 6, 6), 2)}))
    assert "indices in range" in (refused.value.problems[0].remedy or "")


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    body = f"a = Conv<{SAME}>(x, w)\n d = CumSum(a, k)\n y = Conv<{SAME}>(d, v)"
    text = f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) <int32 k = {{1}}> {{ {body} }}"
    model = parse(text, **C8)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        program_of(model, tmp_path / name)
    first, second = (json.loads((tmp_path / name / "out.npu" / "manifest.json").read_text()) for name in "ab")
    assert first == second


def test_opsets_that_npuc_does_not_know_run_on_the_host(tmp_path: Path) -> None:
    model = parse("g (float[1,8] x) => (float[1,8] y) { y = Sigmoid(x) }")
    model.opset_import[0].version, model.ir_version = 6, 3
    model.opset_import.append(onnx.helper.make_opsetid("demo", 1))  # else it is brought to opset 7
    program = program_of(model, tmp_path)
    assert places(program) == [("host", ("Sigmoid",))] and checked(program, tmp_path)["outputs"][0]["exact"]


def test_scalars_cross_as_scalars(tmp_path: Path) -> None:
    body = f"a = Conv<{SAME}>(x, w)\n m = ReduceMax<keepdims = 0>(a)\n t = Tan(s)\n u = Add(m, t)\n y = Mul(a, u)"
    text = f"g (float[1,8,6,6] x, float s) => (float[1,8,6,6] y) {{ {body} }}"
    program = program_of(parse(text, w=C8["w"]), tmp_path)
    assert [port.shape for port in program.inputs] == [(1, 8, 6, 6), ()]
    samples = Samples({
        "x": np.random.default_rng(1).normal(1, 1, (2, 1, 8, 6, 6)).astype(np.float32),
        "s": np.full(2, 0.5, np.float32),
    })  # fmt: skip
    assert checked(program, tmp_path, samples)["status"] == "ok"


def test_a_bound_input_is_a_constant_of_the_program(tmp_path: Path) -> None:
    body = f"c = If<then_branch = yes () => (float[1,8,6,6] p) {{ p = Conv<{SAME}>(x, w) }},"
    body += " else_branch = no () => (float[1,8,6,6] q) { q = Sin(x) }>(flag)\n y = Relu(c)"
    text = f"g (float[1,8,6,6] x, bool flag) => (float[1,8,6,6] y) {{ {body} }}"
    program = program_of(parse(text, w=C8["w"]), tmp_path, options={"bind": (("flag", 1.0),)})
    assert [port.name for port in program.inputs] == ["x"]
    assert not is_composite(program) and program.manifest["bound"] == {"flag": 1.0}
    assert checked(program, tmp_path)["bit_exact"]


def test_only_scalar_inputs_are_bound(tmp_path: Path) -> None:
    model = parse("g (float[1,8] x) => (float[1,8] y) { y = Relu(x) }")
    for name in ("x", "z"):
        with pytest.raises(NpucError) as refused:
            program_of(model, tmp_path, options={"bind": ((name, 1.0),)})
        assert refused.value.problems[0].code == "E109"


@pytest.mark.parametrize("name", ["n/sub", "n/div"])
def test_a_constant_called_as_a_part_of_a_normalisation_keeps_its_values(tmp_path: Path, name: str) -> None:
    body = "n = LayerNormalization(x, s, s)\n a = Add(n, c)\n y = Sinh(a)"
    model = parse(f"g (float[1, 8, 16] x) => (float[1, 8, 16] y) {{ {body} }}", s=(16,), c=(1, 8, 16))
    constant = next(each for each in model.graph.initializer if each.name == "c")
    constant.name = model.graph.node[1].input[1] = name
    assert checked(program_of(model, tmp_path, "bm1684"), tmp_path)["status"] == "ok"
