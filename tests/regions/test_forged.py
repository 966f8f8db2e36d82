"""Regions that someone else wrote: what they ask for while they run is bounded, and so is how long they take."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from select import select
from threading import Event

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from npuc.errors import ArtefactError, ModelError
from npuc.program import GIVEN_BY, Program, save
from npuc.reference import session
from npuc.regions.composite import target_of
from npuc.system import budget, confinement
from npuc.system.confinement import Confined
from tests.cli.process import npuc

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere onnxruntime has no limits")
HEAD = '<ir_version: 8, opset_import: ["": 17]> region (float[1,4] x) => (float y)'
BIG = "n = Constant<value_ints = [1073741824]>()"
SUM = "s = ReduceSum<keepdims = 0>(c)  y = Add(x, s)"
FOREVER = "n = Constant<value_int = 9223372036854775807>()  t = Constant<value = bool {1}>()"
GREEDY = {
    "ConstantOfShape": f"{BIG} c = ConstantOfShape<value = float[1] {{1.0}}>(n) {SUM}",
    "Expand": f"{BIG} i = ReduceMin<keepdims = 0>(x) c = Expand(i, n) {SUM}",
    "Range": "a = ReduceMin<keepdims = 0>(x) b = Constant<value_float = 2e9>() d = Constant<value_float = 1.0>()"
    f" c = Range(a, b, d) {SUM}",
    "Tile": f"e = Constant<value_ints = [1, 134217728]>() c = Tile(x, e) {SUM}",
    "Pad": f"e = Constant<value_ints = [0, 0, 0, 1073741824]>() c = Pad(x, e) {SUM}",
    "Resize": f"e = Constant<value_floats = [1.0, 268435456.0]>() c = Resize(x, , e) {SUM}",
    "a computed shape": f"m = ReduceMax(x) g = Cast<to = 7>(m) r = Constant<value_ints = [-1]>() q = Reshape(g, r)"
    f" {BIG} p = Mul(q, n) c = ConstantOfShape<value = float[1] {{1.0}}>(p) {SUM}",
    "Einsum": "e = Constant<value_ints = [40, 40, 40, 40]>() a = ConstantOfShape<value = float[1] {1.0}>(e)"
    f' c = Einsum<equation = "abcd,efgd->abcefg">(a, a) {SUM}',
}  # fmt: skip
ENDLESS = {
    "Loop of nothing": f"{FOREVER} y = Loop(n, t, x)<body = b (int64 i, bool k, float[1,4] a)"
    " => (bool k, float[1,4] a) { }>",
    "one operator": "e = Constant<value_ints = [1, 1, 6000, 6000]>() a = ConstantOfShape(e)"
    f" f = Constant<value_ints = [1, 1, 3000, 3000]>() w = ConstantOfShape(f) c = Conv(a, w) {SUM}",
}
LOOP = (
    f"{FOREVER} y = Loop(n, t, x)<body = b (int64 i, bool k, float[1,4] a) => (bool l, float[1,4] d)"
    " { l = Identity(k) d = Add(a, a) }>"
)


def program_of(region: onnx.ModelProto) -> Program:
    """A program that is this region and nothing else."""
    port = {"name": "x", "shape": [1, 4], "dtype": "float32"}
    step = {"kind": "host", "path": "host/region_0.onnx", "inputs": ["x"], "outputs": ["y"], "domains": []}
    manifest = {
        "target": "easynpu", "inputs": [port], "outputs": [{**port, "name": "y"}], "steps": [step],
        GIVEN_BY: {"y": "y"},
    }  # fmt: skip
    return Program(manifest, {"host/region_0.onnx": region.SerializeToString()})


def refusal(region: onnx.ModelProto) -> ArtefactError:
    program = program_of(region)
    with pytest.raises(ArtefactError) as caught, budget.set_limits(seconds=1):
        target_of(program).runner(program)({"x": np.ones((1, 1, 4), np.float32)})
    return caught.value


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


@linux
@pytest.mark.parametrize("name", GREEDY)
def test_a_region_gets_no_more_memory_than_the_limit(name: str) -> None:
    (problem,) = refusal(parser.parse_model(f"{HEAD} {{ {GREEDY[name]} }}")).problems
    assert (problem.code, problem.limit) == ("E509", "1,073,741,824 bytes")
    assert "--memory-limit" in (problem.remedy or "")


@linux
@pytest.mark.parametrize("name", ENDLESS)
def test_a_region_that_never_ends_is_ended(name: str) -> None:
    (problem,) = refusal(parser.parse_model(f"{HEAD} {{ {ENDLESS[name]} }}")).problems
    assert (problem.code, problem.limit) == ("E509", "1 seconds") and "NPUC_TIME_LIMIT" in (problem.remedy or "")


@linux
def test_what_many_samples_make_together_is_bounded() -> None:
    """Each is a quarter of the limit."""
    text = "e = Constant<value_ints = [16, 1]>() y = Tile(x, e)"
    program = program_of(parser.parse_model(f"{HEAD} {{ {text} }}"))
    with pytest.raises(ArtefactError) as caught, budget.set_limits(memory=1 << 26):
        target_of(program).runner(program)({"x": np.ones((2, 1 << 17, 4), np.float32)})
    assert caught.value.problems[0].code in ("E502", "E509")
    with budget.set_limits(memory=1 << 26):
        found = target_of(program).runner(program)({"x": np.ones((2, 1, 4), np.float32)})
    assert found["y"].shape == (2, 16, 4)


def test_functions_within_a_region_are_refused() -> None:
    """They could call one another without end."""
    region = parser.parse_model(f"{HEAD} {{ y = Identity(x) }}")
    opset = helper.make_opsetid("", 17)
    body = [helper.make_node("Relu", ["a"], ["c"])]
    region.functions.append(helper.make_function("own", "f", ["a"], ["c"], body, [opset]))
    assert "functions" in str(refusal(region))


def test_files_that_a_region_names_are_refused_wherever_it_names_them() -> None:
    region = parser.parse_model(f"{HEAD} {{ y = Identity(x) }}")
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    sparse = onnx.SparseTensorProto(values=tensor, dims=[1])
    constant = onnx.NodeProto(op_type="Constant", output=["c"])
    constant.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR).sparse_tensor.CopyFrom(
        sparse
    )
    region.graph.node.insert(0, constant)
    assert "files outside the artefact" in str(refusal(region))


@linux
def test_no_process_is_left_behind() -> None:
    gc.collect()
    before = children()
    model = parser.parse_model(f"{HEAD} {{ y = Identity(x) }}")
    opened = session(model, confined=True)
    assert isinstance(opened, Confined) and children() > before
    (value,) = opened.run(["y"], {"x": np.full((1, 4), 7, np.float32)})
    np.testing.assert_array_equal(value, np.full((1, 4), 7))
    del opened
    gc.collect()
    assert children() == before
    with pytest.raises(ModelError):
        session(b"no model", confined=True)
    assert children() == before


@linux
def test_a_process_that_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "STILL", 0.2)
    gc.collect()
    before = children()
    with pytest.raises(ModelError, match="stood still"):
        Confined(Event().wait)
    assert children() == before


@linux
def test_a_copy_that_inherits_a_lock_is_made_once_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(confinement, "STILL", 0.2)
    first = tmp_path / "first"

    def opened() -> Echo:
        if not first.exists():
            first.touch()
            Event().wait()
        return Echo()

    (found,) = Confined(opened).run(None, {"x": np.arange(3)})
    assert found.tolist() == [0, 1, 2]


class Echo:
    """What onnxruntime's sessions are to a process that serves them; its output is its input."""

    def get_inputs(self) -> tuple[()]:
        return ()

    get_outputs = get_inputs

    def run(self, names: object, feeds: Mapping[str, object]) -> list[object]:
        return [feeds["x"]]


@linux
def test_a_process_that_no_longer_reads_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "STILL", 0.2)
    opened = Confined(Echo)
    os.kill(opened.process, signal.SIGSTOP)
    with pytest.raises(ModelError, match="it ended with status"):
        opened.run(None, {"x": np.zeros(1 << 22)})
    assert opened.process not in children()


@linux
def test_a_sample_too_large_for_a_process_is_beyond_the_limit_on_memory() -> None:
    """Of 256 MiB, which no memory that the process has left over can take."""
    with budget.set_limits(memory=1 << 25):
        opened = Confined(Echo)
        with pytest.raises(ModelError) as caught:
            opened.run(None, {"x": np.zeros(1 << 28, np.uint8)})
    assert caught.value.problems[0].code == "E110"


@linux
def test_a_process_holds_no_pipe_of_the_one_that_started_it() -> None:
    """Else whoever waits for the end of that one's output would wait for both."""
    reading, writing = os.pipe()
    opened = session(parser.parse_model(f"{HEAD} {{ y = Identity(x) }}"), confined=True)
    os.close(writing)
    assert select([reading], [], [], 20)[0] == [reading] and os.read(reading, 1) == b""
    os.close(reading)
    (value,) = opened.run(["y"], {"x": np.full((1, 4), 7, np.float32)})
    np.testing.assert_array_equal(value, np.full((1, 4), 7))


@linux
def test_a_limit_of_the_system_below_npucs_own_stays() -> None:
    """A process that the system gives 20 seconds runs models, where npuc's limit is higher."""
    model = parser.parse_model(f"{HEAD} {{ y = Identity(x) }}").SerializeToString()
    code = (
        "import resource, numpy; from npuc.system.budget import limits; from npuc.reference import session\n"
        "assert limits().seconds > 20; resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        f"run = session({model!r}, confined=True).run\n"
        "print(run(None, {'x': numpy.ones((1, 4), 'f')})[0].sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "4.0\n"


@linux
def test_the_command_line_says_it_in_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(program_of(parser.parse_model(f"{HEAD} {{ {LOOP} }}")), tmp_path / "a.npu")
    np.savez(tmp_path / "x.npz", x=np.ones((1, 4), np.float32))
    monkeypatch.setenv("NPUC_TIME_LIMIT", "1")
    outcome = npuc("run", tmp_path / "a.npu", "--data", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
    assert outcome.code == 1 and outcome.err.startswith("error[E509] 'host/region_0.onnx': ")
    assert not (tmp_path / "y.npz").exists()
