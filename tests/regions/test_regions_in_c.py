"""Host regions as C compute what onnxruntime does; what the library lacks is declared for the application."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

from npuc import api
from npuc.ir import Array
from npuc.reference import session
from npuc.regions.artefact import ProgramPart
from npuc.regions.composite import region, regions_in_c, target_of
from npuc.target import Options
from tests.onnx_models import parse

COMPILER = shutil.which("gcc") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler (gcc or cc) on the path")
FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover")

# statement -> the shape of y; x is [2, 3, 4], v [3, 4], m [2, 4, 5], i int64 [2]
FLOATS: Mapping[str, str] = {
    **{f"y = {op}(x)": "2, 3, 4" for op in ("Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Softplus", "Softsign")},
    **{f"y = {op}(x)": "2, 3, 4" for op in ("Exp", "Erf", "Floor", "Ceil", "Round", "HardSwish", "Elu")},
    "y = Reciprocal(x)": "2, 3, 4",
    "a = Abs(x) y = Sqrt(a)": "2, 3, 4",
    "a = Abs(x) y = Log(a)": "2, 3, 4",
    "y = HardSigmoid<alpha = 0.3, beta = 0.4>(x)": "2, 3, 4",
    "y = LeakyRelu<alpha = 0.2>(x)": "2, 3, 4",
    "l = Constant<value_float = -0.5>() h = Constant<value_float = 2.0>() y = Clip(x, l, h)": "2, 3, 4",
    **{f"y = {op}(x, v)": "2, 3, 4" for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu")},
    "y = Sub(v, x)": "2, 3, 4",
    "r = ReduceMax<axes = [1]>(x) y = Mul(r, x)": "2, 3, 4",
    "a = Abs(x) e = Constant<value_float = 1.5>() y = Pow(a, e)": "2, 3, 4",
    "y = ReduceMean<axes = [0, 2]>(x)": "1, 3, 1",
    "y = ReduceMin<axes = [1], keepdims = 0>(x)": "2, 4",
    "k = Constant<value_ints = [2]>() y = ReduceSum(x, k)": "2, 3, 1",
    "y = Softmax<axis = 1>(x)": "2, 3, 4",
    "y = LogSoftmax<axis = -1>(x)": "2, 3, 4",
    "y = MatMul(x, m)": "2, 3, 5",
    "y = MatMul(v, m)": "2, 3, 5",
    "w = Constant<value_floats = [0.5, -2.0, 0.25, 3.0]>() y = MatMul(x, w)": "2, 3",
    "w = Constant<value_floats = [0.5, -2.0, 0.25, 3.0]>() y = MatMul(w, m)": "2, 5",
    "y = Transpose<perm = [2, 0, 1]>(x)": "4, 2, 3",
    "y = Concat<axis = 1>(x, x)": "2, 6, 4",
    "a, y = Split<axis = 2>(x)": "2, 3, 2",
    "s = Constant<value_ints = [3]>() e = Constant<value_ints = [0]>() k = Constant<value_ints = [2]>()"
    " t = Constant<value_ints = [-2]>() y = Slice(x, s, e, k, t)": "2, 3, 2",
    "k = Constant<value_ints = [5, 2, 3, 4]>() y = Expand(x, k)": "5, 2, 3, 4",
    "k = Constant<value_ints = [2, 12]>() a = Reshape(x, k) y = Neg(a)": "2, 12",
    "y = Gather<axis = 1>(x, i)": "2, 2, 4",
    "c = Constant<value_ints = [2, 0, -1]>() y = Gather<axis = 2>(x, c)": "2, 3, 3",
    "w = Constant<value = float[1,2,4] {0.5, -0.2, 0.25, 0.3, 0.1, 0.7, -0.4, 0.2}>()"
    " r = Constant<value = float[1,2,2] {0.6, -0.3, 0.2, 0.4}>() y = RNN<hidden_size = 2>(x, w, r)": "2, 1, 3, 2",
    "s = Constant<value = float {0.05}>() z = Constant<value = int8 {-7}>() q = QuantizeLinear(x, s, z)"
    " y = DequantizeLinear(q, s, z)": "2, 3, 4",
    "s = Constant<value = float {0.03}>() z = Constant<value = uint8 {131}>() q = QuantizeLinear(x, s, z)"
    " y = DequantizeLinear(q, s, z)": "2, 3, 4",
}  # fmt: skip


def _together() -> onnx.ModelProto:
    """One model with an output for every statement, whose inner names are its own."""
    header = "float[2,3,4] x, float[3,4] v, float[2,4,5] m, int64[2] i"
    outputs = ", ".join(f"float[{shape}] y_{at}" for at, shape in enumerate(FLOATS.values()))
    model = parse(f"g ({header}) => ({outputs}) {{ }}")
    for at, statement in enumerate(FLOATS):
        text = f'<ir_version: 8, opset_import: ["": 17]> g ({header}) => (float[1] y) {{ {statement} }}'
        for node in parser.parse_model(text).graph.node:
            for names in (node.input, node.output):
                renamed = [name if name in ("x", "v", "m", "i") else f"{name}_{at}" for name in names]
                del names[:]
                names.extend(renamed)
            model.graph.node.append(node)
    return model


def _step(model: onnx.ModelProto) -> ProgramPart:
    inputs, outputs = (tuple(each.name for each in side) for side in (model.graph.input, model.graph.output))
    return ProgramPart("host", "host/region_0.onnx", inputs, outputs)


MAIN = """#include <stdio.h>
#include <stdlib.h>
#include "npuc_regions.h"

int main(int count, char **names)
{{
    const size_t inputs[] = {{{inputs}}}, outputs[] = {{{outputs}}};
    npuc_tensor in[sizeof inputs / sizeof *inputs] = {{{{0}}}}, out[sizeof outputs / sizeof *outputs] = {{{{0}}}};
    FILE *from = fopen(names[1], "rb"), *to = fopen(names[count - 1], "wb");
    size_t at;
    int failed;

    for (at = 0; at < sizeof inputs / sizeof *inputs; at++) {{
        in[at].data = malloc(inputs[at]);
        if (fread(in[at].data, 1, inputs[at], from) != inputs[at]) return 9;
    }}
    for (at = 0; at < sizeof outputs / sizeof *outputs; at++) out[at].data = malloc(outputs[at]);
    failed = npuc_host_region_0(in, out);
    for (at = 0; at < sizeof outputs / sizeof *outputs; at++) fwrite(out[at].data, 1, outputs[at], to);
    for (at = 0; at < sizeof inputs / sizeof *inputs; at++) free(in[at].data);
    for (at = 0; at < sizeof outputs / sizeof *outputs; at++) free(out[at].data);
    fclose(from);
    fclose(to);
    return failed ? 3 : 0;
}}
"""


class _Built:
    """A region compiled with warnings as errors and sanitizers."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        self.model, self.folder = model, folder
        found = region(model.SerializeToString(), 0, _step(model))
        assert found.text is not None
        self.results = [(each.name, _shape(each)) for each in model.graph.output]
        sizes = [", ".join(str(_bytes(each)) for each in side) for side in (model.graph.input, model.graph.output)]
        for name, data in regions_in_c([found]).items():
            (folder / name).write_bytes(data)
        (folder / "main.c").write_text(MAIN.format(inputs=sizes[0], outputs=sizes[1]), encoding="ascii")
        command = [str(COMPILER), *FLAGS, "-o", "built", "main.c", "npuc_regions.c", "npuc_operators.c", "-lm"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    def __call__(self, feeds: Mapping[str, Array]) -> tuple[int, dict[str, Array]]:
        """What the region gives, and its outputs."""
        (self.folder / "in").write_bytes(b"".join(feeds[each.name].tobytes() for each in self.model.graph.input))
        done = subprocess.run(
            [self.folder / "built", "in", "out"], cwd=self.folder, capture_output=True, check=False
        )
        assert done.stderr == b""
        rows, at = {}, 0
        values = np.frombuffer((self.folder / "out").read_bytes(), np.float32)
        for name, shape in self.results:
            rows[name] = values[at : at + int(np.prod(shape))].reshape(shape)
            at += int(np.prod(shape))
        return done.returncode, rows


def _shape(found: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(each.dim_value for each in found.type.tensor_type.shape.dim)


def _bytes(found: onnx.ValueInfoProto) -> int:
    return int(np.prod(_shape(found))) * (8 if found.type.tensor_type.elem_type == onnx.TensorProto.INT64 else 4)


@needs_compiler
def test_every_operator_of_the_library_computes_what_onnxruntime_does(tmp_path: Path) -> None:
    model = _together()
    built, reference = _Built(model, tmp_path), session(model)
    random = np.random.default_rng(0)
    edges = np.array([0.0, -0.0, 1e-30, -80, 80, 0.5, 1.5, 2.5, -2.5, 6, -3, 3, 1, -1] + [0.025] * 10, np.float32)
    for x in (random.normal(0.4, 2, (2, 3, 4)), edges.reshape(2, 3, 4), random.normal(-20, 30, (2, 3, 4))):
        feeds: dict[str, Array] = {
            "x": x.astype(np.float32),
            "v": random.normal(0.2, 1, (3, 4)).astype(np.float32),
            "m": random.normal(0.1, 1, (2, 4, 5)).astype(np.float32),
            "i": np.array([-1, 1]),
        }
        failed, found = built(feeds)
        assert failed == 0
        wanted: dict[str, Any] = dict(zip(found, reference.run(list(found), feeds), strict=True))
        for at, statement in enumerate(FLOATS):
            np.testing.assert_allclose(
                found[f"y_{at}"], wanted[f"y_{at}"], rtol=2e-5, atol=2e-6, err_msg=statement
            )


@needs_compiler
def test_an_index_that_chooses_nothing_is_an_error(tmp_path: Path) -> None:
    text = "g (float[2,3,4] x, int64[2] i) => (float[2,2,4] y) { y = Gather<axis = 1>(x, i) }"
    built = _Built(parse(text), tmp_path)
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for index, failed in ((2, 0), (3, 3), (-3, 0), (-4, 3)):
        assert built({"x": x, "i": np.array([0, index])})[0] == failed


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,3] x) => (float[2,3] y) <int32 k = {1}> { y = CumSum(x, k) }",
        "g (double[2,3] x) => (double[2,3] y) { y = Sigmoid(x) }",
        "g (float[2,3] x) => (float[2,3] y, float[2,3] x) { y = Relu(x) }",
        "g (float[2,3] x, float[1] s) => (int8[2,3] y) { y = QuantizeLinear(x, s) }",
        "g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }",
    ],
    ids=["operator", "element type", "an input that is an output", "scale at run time", "dynamic"],
)
def test_what_the_library_lacks_is_declared(text: str) -> None:
    model = parse(text)
    found = region(model.SerializeToString(), 4, _step(model))
    assert found.text is None
    header = regions_in_c([found])["npuc_regions.h"].decode()
    assert "YOURS: supply this function" in header
    assert "int npuc_host_region_4(const npuc_tensor *in, npuc_tensor *out);" in header
    assert model.graph.node[0].op_type in header
    assert b"npuc_host_region_4" not in regions_in_c([found])["npuc_regions.c"]


@pytest.mark.parametrize("name", ["easynpu", "nvdla-small"])
def test_an_export_has_its_regions_in_c_and_as_onnx(name: str) -> None:
    text = """g (float[1,8,6,6] x) => (float[1,8,6,6] y) <int32 k = {1}> {
        a = Conv(x, w) s = Sin(a) b = Conv(s, w) c = Sigmoid(b) y = Conv(c, w) }"""
    compiled = api.compile(
        parse(text, w=(8, 8, 1, 1)),
        name,
        calibration="synthetic",
        options=Options(level="0", deny=("Sigmoid",)),
    )
    files = target_of(compiled.program).export(compiled.program, "c")
    steps = json.loads(files["steps.json"])["steps"]
    assert [step["kind"] for step in steps] == ["npu", "host", "npu", "host", "npu"]
    assert {"host/region_0.onnx", "host/region_1.onnx", "npuc_operators.c"} <= files.keys()
    header, source = (files[f"npuc_regions.{each}"].decode() for each in "hc")
    assert "host/region_0.onnx, YOURS" in header
    assert "host/region_1.onnx, computed by npuc_regions.c" in header
    assert "npuc_host_region_1" in source
    assert "npuc_host_region_0" not in source


def test_names_of_a_model_do_not_end_a_comment() -> None:
    model = parse("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    hostile = "*/ int evil; /*"
    model.graph.node[0].input[0] = model.graph.input[0].name = hostile
    header = regions_in_c([region(model.SerializeToString(), 0, _step(model))])["npuc_regions.h"].decode()
    assert hostile not in header


@needs_compiler
def test_nan_is_quantised_as_zero_is(tmp_path: Path) -> None:
    text = """g (float[4] x) => (float[4] y) <float s = {0.5}, uint8 z = {131}> {
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
    model = parse(text)
    status, found = _Built(model, tmp_path)({"x": np.array([np.nan, 0, 1, -np.inf], np.float32)})
    assert status == 0
    assert found["y"].tolist() == [0, 0, 1, -65.5]
