"""Exported programs, compiled as C and run on the machine model in C, give what the simulator gives."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from npuc import program, running
from npuc.models.digits import FOLDER
from npuc.models.networks import resnet8
from npuc.program import Program
from npuc.samples import loading as data
from npuc.target import Options, Request
from tests.compiled import compilation
from tests.easynpu_c import compiling
from tests.easynpu_c.compiling import EASYNPU
from tests.onnx_models import parse

ACTIVATIONS = """agraph (float[1,3,12,12] x)
    => (float[1,10] logits, float[1,10] p, float[1,24,6,6] log, int64[1,1,6,6] best, int64[1,24,6] last) {
  a = Conv<pads=[1,1,1,1]>(x, w1, b1)
  s = Sigmoid(a)
  b = Conv<pads=[1,1,1,1], strides=[2,2]>(s, w2, b2)
  h = HardSwish(b)
  d = Conv<group=24, pads=[1,1,1,1]>(h, w3, b3)
  t = Tanh(d)
  r = PRelu(t, slope)
  g = GlobalAveragePool(r)
  f = Flatten(g)
  logits = Gemm<transB=1>(f, w4, b4)
  p = Softmax<axis=1>(logits)
  log = LogSoftmax<axis=1>(t)
  best = ArgMax<axis=1, keepdims=1>(t)
  last = ArgMax<axis=2, keepdims=0, select_last_index=1>(t)
}"""
ACTIVATION_WEIGHTS = {
    "w1": (16, 3, 3, 3), "b1": (16,), "w2": (24, 16, 3, 3), "b2": (24,), "w3": (24, 1, 3, 3), "b3": (24,),
    "slope": (24, 1, 1), "w4": (10, 24), "b4": (10,),
}  # fmt: skip

SQUEEZE_EXCITE = """agraph (float[1,8,10,10] x) => (float[1,20,10,10] y) {
  a = Conv<pads=[1,1,1,1]>(x, w1, b1)
  r = Relu(a)
  g = GlobalAveragePool(r)
  e = Conv(g, w2, b2)
  f = Relu(e)
  h = Conv(f, w3, b3)
  s = HardSigmoid(h)
  m = Mul(r, s)
  c = Conv(m, w4, b4)
  z = Add(c, r)
  y = Relu(z)
}"""
SQUEEZE_EXCITE_WEIGHTS = {
    "w1": (20, 8, 3, 3), "b1": (20,), "w2": (5, 20, 1, 1), "b2": (5,), "w3": (20, 5, 1, 1), "b3": (20,),
    "w4": (20, 20, 1, 1), "b4": (20,),
}  # fmt: skip

HOST_STEPS = """agraph (float[1,8,8,3] x, float[1,5,4,4] u)
    => (float[1,8,10] y, float[1,20] lr, float[1,3,4,4] v, float[1,20] same) {
  t = Transpose<perm=[0,3,1,2]>(x)
  n = LRN<size=3, alpha=0.3, beta=0.6, bias=1.5>(t)
  a = Conv<pads=[1,1,1,1]>(n, w1, b1)
  r = Relu(a)
  sd = SpaceToDepth<blocksize=2>(r)
  cc = Concat<axis=1>(sd, u)
  b = Conv(cc, w2, b2)
  v1, v2 = Split<axis=1>(b, i_split)
  v = Slice(v1, i_starts, i_ends, i_axes, i_steps)
  ds = DepthToSpace<blocksize=2, mode="CRD">(v2)
  d2 = DepthToSpace<blocksize=2>(v2)
  q = Concat<axis=1>(ds, d2)
  c = Conv<strides=[2,2]>(q, w3, b3)
  tt = Transpose<perm=[0,2,3,1]>(c)
  fl = Reshape(tt, i_shape)
  y = Transpose<perm=[0,2,1]>(fl)
  m = GlobalAveragePool(cc)
  m2 = Flatten(m)
  lr = Gemm<transB=1>(m2, w4)
  same = Reshape(lr, i_row)
}"""
HOST_WEIGHTS = {
    "w1": (7, 3, 3, 3), "b1": (7,), "w2": (11, 33, 1, 1), "b2": (11,), "w3": (5, 4, 2, 2), "b3": (5,),
    "w4": (20, 33), "i_split": (3, 8), "i_starts": (3, -1), "i_ends": (-10, -10), "i_axes": (2, 1),
    "i_steps": (-1, -1), "i_shape": (1, -1, 8), "i_row": (1, 20),
}  # fmt: skip

MIRRORED = """agraph (float[1,3,7,5] x) => (float[1,37,7,5] y) {
  y = Conv<pads=[1,1,1,1]>(x, w, b)
}"""
MIRRORED_WEIGHTS = {"w": (37, 3, 3, 3), "b": (37,)}


def network(text: str, weights: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
    """A model with normal weights of these shapes; constants named i_* are int64 values themselves."""
    model = parse(text)
    random = np.random.default_rng(0)
    for name, shape in weights.items():
        if name.startswith("i_"):
            values = np.array(shape, np.int64)
        else:
            fan = max(int(np.prod(shape[1:])), 1)
            values = (random.standard_normal(shape) * np.sqrt(2 / fan)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


def compiled(
    model: onnx.ModelProto | Path, folder: Path, calibration: Sequence[Path] = (), **options: Any
) -> Program:
    """The program as it is read back from its artefact."""
    if isinstance(model, onnx.ModelProto):
        onnx.save(model, folder / "model.onnx")
        model = folder / "model.onnx"
    program.save(
        compilation(Request(model, EASYNPU, Options(**options), calibration)).program, folder / "model.npu"
    )
    return program.load(folder / "model.npu")


def agree(
    found: Program, folder: Path, samples: data.Samples, floats: Sequence[str] = (), flags: Sequence[str] = ()
) -> None:
    """Every output but `floats` to the bit: int8 values times a scale, or indices."""
    outputs = compiling.run(compiling.exported(found, folder, flags or compiling.STRICT), found, samples.inputs)
    expected = EASYNPU.runner(found)(samples.inputs)
    assert outputs.keys() == expected.keys()
    for name, values in outputs.items():
        assert values.dtype == expected[name].dtype
        assert len(np.unique(values)) > 1
        if name in floats:
            np.testing.assert_allclose(values, expected[name], rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(values, expected[name])


def normal(found: Program, count: int = 3) -> data.Samples:
    return data.synthetic(running.program_inputs(found), count, seed=7)


def test_digits_gives_the_simulators_logits_to_the_bit(tmp_path: Path) -> None:
    found = compiled(FOLDER / "digits.onnx", tmp_path, [FOLDER / "digits_calibration.npz"])
    samples = data.load([FOLDER / "digits_test.npz"], running.program_inputs(found)).first(50)
    agree(found, tmp_path / "c", samples)


@pytest.mark.parametrize("option", ["", "overlap = true\n", "-DNPUC_OVERLAP"])
def test_resnet8_in_strips_and_segments_agrees_to_the_bit(option: str, tmp_path: Path) -> None:
    """With overlap, loads ahead lie behind the run, or before it: the model runs when the host waits."""
    lines = "overlap = true\n" if option else ""
    (tmp_path / "small.toml").write_text(f"fmap_words = 500\n{lines}", encoding="ascii")
    found = compiled(resnet8(), tmp_path, machine=str(tmp_path / "small.toml"))
    segments = [step for step in found.manifest["steps"] if step["kind"] == "segment"]
    assert len(segments) > 1
    assert any(any(move["start"]) for step in segments for move in step["loads"])  # windows of the image
    assert any("loads_ahead" in step for step in segments) is bool(option)
    flags = [*compiling.STRICT, option] if option[:1] == "-" else []
    agree(found, tmp_path / "c", normal(found), flags=flags)
    if flags:
        failing = str(Path(__file__).with_name("failing.c"))
        sources = ("npuc_program.c", "npuc_driver.c", "npuc_operators.c", failing)
        subprocess.run([compiling.build(tmp_path / "c", sources, flags)], check=True)


def test_activation_tables_slopes_and_the_hosts_outputs_agree(tmp_path: Path) -> None:
    found = compiled(network(ACTIVATIONS, ACTIVATION_WEIGHTS), tmp_path)
    mnemonics = {entry["mnemonic"].split(".")[0] for entry in found.manifest["instructions"]}
    assert {"act", "prelu"} <= mnemonics
    agree(found, tmp_path / "c", normal(found, 8), floats=("p", "log"), flags=compiling.careful_flags())


def test_squeeze_excite_on_four_rows_of_pes_agrees_to_the_bit(tmp_path: Path) -> None:
    machine = tmp_path / "rows.toml"
    machine.write_text("pe_rows = 4\n", encoding="utf-8")
    found = compiled(network(SQUEEZE_EXCITE, SQUEEZE_EXCITE_WEIGHTS), tmp_path, machine=str(machine))
    assert any(entry["mnemonic"].startswith("mul") for entry in found.manifest["instructions"])
    agree(found, tmp_path / "c", normal(found))


def test_data_movement_and_normalisation_on_the_host_agree(tmp_path: Path) -> None:
    found = compiled(network(HOST_STEPS, HOST_WEIGHTS), tmp_path)
    operators = {step["op"] for step in found.manifest["steps"] if step["kind"] == "host"}
    assert {"LRN", "Transpose"} <= operators
    agree(found, tmp_path / "c", normal(found))


def test_windows_of_a_dilated_layer_are_moved_from_and_to_whole_maps(tmp_path: Path) -> None:
    text = """agraph (float[1,16,33,31] x) => (float[1,20,33,31] y) {
      a = Conv<pads=[12,12,12,12], dilations=[12,12]>(x, w1, b1) r = Relu(a)
      y = Conv<pads=[18,18,18,18], dilations=[18,18]>(r, w2, b2) }"""
    weights = {"w1": (16, 16, 3, 3), "b1": (16,), "w2": (20, 16, 3, 3), "b2": (20,)}
    found = compiled(network(text, weights), tmp_path)
    moves = [move for step in found.manifest["steps"] if step["kind"] == "segment" for move in step["stores"]]
    assert any(move["start"][1] and move["start"][2] for move in moves)
    agree(found, tmp_path / "c", normal(found))


def test_a_result_at_the_high_end_is_read_from_its_mirrored_place(tmp_path: Path) -> None:
    found = compiled(network(MIRRORED, MIRRORED_WEIGHTS), tmp_path, isa="documented")
    (store,) = (move for step in found.manifest["steps"] if step["kind"] == "segment" for move in step["stores"])
    assert store["place"]["pixel"] == -3
    agree(found, tmp_path / "c", normal(found))


def test_the_makefile_builds_the_test(tmp_path: Path) -> None:
    make = shutil.which("make")
    compiling.compiler()
    if make is None:
        pytest.skip("no make on the path")
    found = compiled(network(MIRRORED, MIRRORED_WEIGHTS), tmp_path)
    program.save_files(EASYNPU.export(found, "c"), tmp_path / "c")
    done = subprocess.run([make], cwd=tmp_path / "c", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    samples = normal(found)
    outputs = compiling.run(tmp_path / "c" / "npuc_test", found, samples.inputs)
    np.testing.assert_array_equal(outputs["y"], EASYNPU.runner(found)(samples.inputs)["y"])
