"""What a machine file says of scales, the keyword `scales` of Python, and tables of scales."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import frexp
from pathlib import Path

import numpy as np
import onnx
import pytest

import npuc as api
from npuc.program import load
from npuc.regions.composite import target_of
from npuc.running import run_program
from npuc.samples.loading import Samples
from tests.cli.process import SYNTHETIC, Digits, Outcome, npuc
from tests.onnx_models import parse

TARGETS = ("easynpu", "nvdla-small")


@pytest.mark.parametrize("target", TARGETS)
def test_a_machine_file_demands_it_and_the_keyword_overrides_the_file(
    target: str, digits: Digits, tmp_path: Path
) -> None:
    machine, program = tmp_path / "m.toml", tmp_path / "o"
    machine.write_text('scales = "power-of-two"')

    def powers() -> list[bool]:
        manifest = json.loads((program / "manifest.json").read_text("utf-8"))
        demanded = manifest["machine"]["scales"] == "power-of-two"
        layers = json.loads((program / "graph.json").read_text("utf-8"))["tensors"]
        return [demanded, all(frexp(each["scale"])[0] == 0.5 for each in layers.values())]

    samples = ("--calibration", digits.few, "-o", program)
    npuc("compile", digits.model, "--target", target, "--machine", machine, *samples).done()
    assert powers() == [True, True]
    npuc("verify", digits.model, program, "--data", digits.few).done()
    free = api.compile(digits.model, target, calibration=digits.few, machine=machine, scales="free")
    free.save(program, force=True)
    assert powers() == [False, False]
    machine.write_text('scales = "integer"')
    arguments = ("compile", *SYNTHETIC, digits.model, "--target", target, "--machine", machine, "-o", program)
    message = npuc(*arguments).refused("E305")
    assert "scales = 'integer'" in message and "free, power-of-two" in message


def test_it_can_be_asked_only_of_what_has_scales(digits: Digits) -> None:
    for target, precision in (("bm1684", "fp32"), ("nvdla-full", "fp16")):
        with pytest.raises(ValueError, match="has no scales"):
            api.compile(digits.model, target, precision=precision, scales="power-of-two")


CONV = "network (float[1,2,4,4] x) => (float[1,2,4,4] y) { c = Conv(x, w) y = Relu(c) }"
EVERYWHERE = ("easynpu", "nvdla-small", "nvdla-full", "bm1684 int8")
GIVEN = {"x": (0.5, 0), "y": (0.125, -128)}


def _toml(table: Mapping[str, tuple[float, int]]) -> str:
    return "".join(f'["{name}"]\nscale = {each[0]}\nzero_point = {each[1]}\n' for name, each in table.items())


def _nvidia(table: Mapping[str, tuple[float, int]]) -> str:
    """As nvdla/sw's calib_txt_to_json.py writes it."""
    return json.dumps({name: {"scale": s, "min": 0, "max": 0, "offset": z} for name, (s, z) in table.items()})


@pytest.fixture
def asked(tmp_path: Path) -> Callable[..., Outcome]:
    """Compiles a model for a target with a table, the samples from -40 to 40."""
    values = np.random.default_rng(3).uniform(-40, 40, (8, 1, 2, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "s.npz", x=values)

    def compile_with(model: onnx.ModelProto, name: str, table: str, *more: str, suffix: str = ".toml") -> Outcome:
        onnx.save(model, tmp_path / "m.onnx")
        file = tmp_path / f"table{suffix}"
        file.write_text(table, encoding="utf-8")
        target, *precision = name.split()
        options = [each for value in precision for each in ("--precision", value)]
        where = ("--calibration", tmp_path / "s.npz", "--scales-in", file, "-o", tmp_path / "p", "--force", *more)
        return npuc("compile", tmp_path / "m.onnx", "--target", target, *options, *where)

    return compile_with


def _identity() -> onnx.ModelProto:
    return parse(CONV, w=np.eye(2, dtype=np.float32).reshape(2, 2, 1, 1))


@pytest.mark.parametrize("target", EVERYWHERE)
@pytest.mark.parametrize("form", [_toml, _nvidia])
def test_the_program_has_the_scales_of_the_table(
    target: str, form: Callable[..., str], asked: Callable[..., Outcome], tmp_path: Path
) -> None:
    """x is rounded to halves, and y, eighths from 0 on, ends at 255 of them."""
    asked(_identity(), target, form(GIVEN), suffix=".json" if form is _nvidia else ".toml").done()
    program = load(tmp_path / "p")
    x = np.array([-3, -0.25, 0.2, 0.3, 7.3, 31.5, 40, 63.5] * 4, np.float32).reshape(1, 1, 2, 4, 4)
    found = run_program(program, target_of(program), Samples({"x": x}))["y"]
    by_hand = [0, 0, 0, 0.5, 7.5, 31.5, 31.875, 31.875]
    assert found.ravel().tolist() == by_hand * 4


@pytest.mark.parametrize("target", EVERYWHERE)
def test_tensors_without_an_entry_are_calibrated(
    target: str, asked: Callable[..., Outcome], tmp_path: Path
) -> None:
    asked(_identity(), target, _toml({"x": (0.5, 0)})).done()
    tensors = json.loads((tmp_path / "p" / "graph.json").read_text("utf-8"))["tensors"].values()
    scales = {each["float"]: each["scale"] for each in tensors}
    assert scales["x"] == 0.5
    assert 40 / 255 * 0.8 < scales["y"] < 40 / 127 * 1.2


@pytest.mark.parametrize("target", EVERYWHERE[:3])
def test_a_written_table_gives_the_same_scales_again(target: str, digits: Digits, tmp_path: Path) -> None:
    for suffix in (".toml", ".json"):
        table, program = tmp_path / f"t{suffix}", tmp_path / "p"
        common = (digits.model, "--target", target, "--calibration", digits.calibration, "-o")
        npuc("quantize", *common, tmp_path / "q.onnx", "--scales-out", table).done()
        npuc("compile", *common, program, "--scales-in", table, "--force").done()
        model = onnx.load(tmp_path / "q.onnx")
        constants = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
        pairs = [node.input[1:] for node in model.graph.node if node.op_type == "QuantizeLinear"]
        rounded = {(float(constants[scale]), int(constants[zero])) for scale, zero in pairs}
        tensors = json.loads((program / "graph.json").read_text("utf-8"))["tensors"].values()
        assert {(each["scale"], each["zero_point"]) for each in tensors} == rounded
        if suffix == ".json":
            entry = next(iter(json.loads(table.read_text("utf-8")).values()))
            assert [*entry] == ["scale", "min", "max", "offset"]


POOL = "network (float[1,2,4,4] x) => (float[1,2,2,2] y) { c = Conv(x, w) y = MaxPool<kernel_shape=[2,2]>(c) }"


@pytest.mark.parametrize(
    ("text", "table", "target", "said"),
    [
        (CONV, _toml({"cc": (0.5, 0)}), "easynpu", "tensor 'cc': the model computes no such tensor. Did you mean"),
        (CONV, _toml({"w": (0.5, 0)}), "easynpu", "tensor 'w': the model computes no such tensor"),
        (CONV, _toml({"y": (0.0, 0)}), "nvdla-small", "tensor 'y': its scale is 0"),
        (CONV, _toml({"y": (-0.5, 0)}), "nvdla-small", "tensor 'y': its scale is -0.5"),
        (CONV, '["y"]\nscale = nan', "nvdla-small", "tensor 'y': scale = nan"),
        (CONV, '["y"]\nscale = inf', "nvdla-small", "tensor 'y': scale = inf"),
        (CONV, '["y"]\nscale = 1e-60', "nvdla-small", "tensor 'y': its scale is 1e-60"),
        (CONV, _toml({"y": (0.5, 200)}), "nvdla-small", "tensor 'y': its zero point is 200"),
        (CONV, '["y"]\nscale = 1\nsteps = 3', "nvdla-small", "tensor 'y': unknown key 'steps'"),
        (CONV, '["y"]\nscale = 1\nprecision = "fp16"', "nvdla-full", "tensor 'y': precision = 'fp16'"),
        (CONV, '["y"]\nscale = 1\nprecision = "int16"', "nvdla-full", "tensor 'y': the table has it in int16"),
        (CONV, '["y"]\nzero_point = 3', "nvdla-full", "tensor 'y': it has neither scale nor min and max"),
        (CONV, "y = 3", "nvdla-full", "tensor 'y': 3 is no table"),
        (CONV, "[y", "nvdla-full", "cannot be read"),
        (CONV, _toml({"y": (0.5, 3)}), "bm1684 int8", "tensor 'y': the machine has no zero point 3"),
        (CONV, _toml({"y": (0.5, 3)}), "nvdla-full int16", "tensor 'y': the machine has no zero point 3"),
        (POOL, _toml({"c": (0.5, 0), "y": (0.25, 0)}), "nvdla-small", "'c', of which it has the same integers"),
        (POOL, _toml({"c": (0.5, 0), "y": (0.5, 3)}), "easynpu", "'c', of which it has the same integers"),
    ],
)
def test_what_no_tensor_or_machine_can_have_is_refused_by_name(
    text: str, table: str, target: str, said: str, asked: Callable[..., Outcome]
) -> None:
    model = parse(text, w=np.eye(2, dtype=np.float32).reshape(2, 2, 1, 1))
    assert said in asked(model, target, table).refused("E406")


def test_scales_that_a_machine_or_an_option_cannot_keep_are_refused(
    asked: Callable[..., Outcome], tmp_path: Path
) -> None:
    table, machine = _toml({"y": (0.3, 0)}), tmp_path / "m.toml"
    machine.write_text('scales = "power-of-two"')
    assert "tensor 'y'" in asked(_identity(), "easynpu", table, "--machine", machine).refused("E406")
    assert "equal scales" in asked(_identity(), "easynpu", table, "--isa", "documented").refused("E406")
    assert "has no scales in fp16" in asked(_identity(), "nvdla-full fp16", table).usage()


def test_a_table_must_not_contradict_a_quantised_model(asked: Callable[..., Outcome]) -> None:
    text = """network (float[1,2,4,4] x) => (float[1,2,4,4] y) {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  c = Conv(d, w)  y = Relu(c) }"""
    model = parse(text, s=np.float32(0.5), z=np.int8(0), w=np.eye(2, dtype=np.float32).reshape(2, 2, 1, 1))
    asked(model, "nvdla-small", _toml({"d": (0.5, 0)})).done()
    assert "the model gives it 0.5 and 0" in asked(model, "nvdla-small", _toml({"d": (0.25, 0)})).refused("E406")


def test_entries_of_tensors_inside_a_layer_are_told(asked: Callable[..., Outcome]) -> None:
    found = asked(_identity(), "nvdla-small", _toml({**GIVEN, "c": (0.5, 0)}), "--json").json
    (warning,) = [each for each in found["warnings"] if each["code"] == "W305"]
    assert (warning["tensor"], warning["reason"]) == (
        "c",
        "1 of 3 tensors of the table are not stored in int8: 'c'",
    )


@pytest.mark.parametrize("target", EVERYWHERE[:3])
def test_operands_and_result_of_a_concat_keep_scales_of_their_own(
    target: str, asked: Callable[..., Outcome], tmp_path: Path
) -> None:
    text = """network (float[1,2,4,4] x) => (float[1,4,4,4] y) {
        a = Conv(x, w)  r = Relu(a)  b = Conv(x, u)  c = Concat<axis=1>(r, b)  y = Conv(c, v) }"""
    wanted = {"r": (0.5, -128), "b": (0.25, 0), "c": (1.0, 0)}
    two, four = (np.eye(each, dtype=np.float32).reshape(each, each, 1, 1) for each in (2, 4))
    asked(parse(text, w=two, u=-two, v=four), target, _toml(wanted)).done()
    tensors = json.loads((tmp_path / "p" / "graph.json").read_text("utf-8"))["tensors"].values()
    found = {each["float"]: (each["scale"], each["zero_point"]) for each in tensors}
    assert {name: found[name] for name in wanted} == wanted
