"""Whole networks on the RTL: bits are the simulator's, of two in every layer; cycles those of the report."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.given import GIVEN

pytest.importorskip("amaranth", reason="the RTL is written in Amaranth: npuc[rtl]")

from npuc import program as programs
from npuc import running
from npuc.ir import Array
from npuc.models import MODELS
from npuc.samples import loading as data
from npuc.target import Options, Request, cycles_of, target
from npuc.targets.easynpu.machine.parameters import Machine, load
from tests.compiled import compilation
from tests.easynpu import test_simulator as words
from tests.easynpu_rtl.rig import Rtl, needed

pytestmark = pytest.mark.slow
MACHINES = ["default", "document"]
"""Two sets of ifmap pads, and one."""
ROWS = {
    "four rows": Machine(pe_rows=4, psum_entries=32),
    "eight rows": Machine(pe_rows=8, psum_entries=8, ifmap_pad_sets=1),
    "overlap": Machine(overlap=True),
}
STEPS = {"default": 1, "document": 1, "large": 17}
"""Of the pairs of words, which are tried; on other machines every fifth."""

ROOT = Path(__file__).resolve().parents[2]
SHARED = GIVEN / "models"


def expect_the_simulators_bits_and_cycles(
    model: Path, folder: Path, machine: str, isa: str = "extended", *, observed: bool = False
) -> programs.Program:
    """observed: the results of every layer are compared too, with a pause after each chain of words."""
    needed(load(machine))
    easynpu = target("easynpu")
    compiled = compilation(Request(model, easynpu, Options(machine=machine, flags={"isa": isa}))).program
    programs.save(compiled, folder / "m.npu")
    program = programs.load(folder / "m.npu")
    samples = data.synthetic(running.program_inputs(program), 1)
    own: dict[str, Array] = {}
    rtl: dict[str, Array] = {}
    expected = easynpu.runner(program)(samples.inputs, own.__setitem__)
    runner = easynpu.runner(program, "rtl")
    found = runner(samples.inputs)
    assert cycles_of(runner) == program.report["cycles"]
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    if observed:
        runner(samples.inputs, rtl.__setitem__)
        assert rtl.keys() == own.keys()
        for name, values in own.items():
            np.testing.assert_array_equal(rtl[name], values, err_msg=name)
    return program


@pytest.mark.parametrize("machine", MACHINES)
def test_digits(machine: str, tmp_path: Path) -> None:
    expect_the_simulators_bits_and_cycles(ROOT / "models" / "digits.onnx", tmp_path, machine, observed=True)


@pytest.mark.parametrize(
    ("name", "machine"),
    [*product(["ds_cnn"], MACHINES), ("resnet8", "default"), ("mobilenet_v1_025", "default")],
)
def test_a_network_of_several_segments(name: str, machine: str, tmp_path: Path) -> None:
    onnx.save(MODELS[name](), tmp_path / "m.onnx")
    expect_the_simulators_bits_and_cycles(tmp_path / "m.onnx", tmp_path, machine, observed=name == "ds_cnn")


@pytest.mark.parametrize("name", ["ds_cnn", "mobilenet_v1_025"])
def test_loads_beside_a_run_change_neither_its_bits_nor_its_cycles(name: str, tmp_path: Path) -> None:
    onnx.save(MODELS[name](), tmp_path / "m.onnx")
    (tmp_path / "overlap.toml").write_text("overlap = true\nfmap_words = 600\nskip_words = 600\n")
    found = expect_the_simulators_bits_and_cycles(
        tmp_path / "m.onnx", tmp_path, str(tmp_path / "overlap.toml"), observed=name == "ds_cnn"
    )
    assert any(each.get("images_ahead") for each in found.manifest["steps"])
    assert any(each.get("loads_ahead") for each in found.manifest["steps"]) is (name != "ds_cnn")


@pytest.mark.parametrize("name", ["default", "document", "large", "author", *ROWS])
def test_every_machine_takes_the_model_s_cycles_run_after_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word before every other: three chains in two runs, in memories full of noise (or filled beside)."""
    machine = ROWS.get(name) or load(name)
    needed(machine)
    monkeypatch.setattr(words, "Simulator", Rtl)
    monkeypatch.setattr(words, "MACHINE", machine)
    pairs = [*product(words.HEADS, repeat=2)][:: STEPS.get(name, 5)]
    done = 0
    for first, second in pairs:
        random = np.random.default_rng((first, second))
        writer = words.Writer(random, machine=machine)
        shape = writer.number(1, 3), writer.number(1, 3), int(random.choice([1, 8, 16]))
        for op in (first, second, first):
            layer = writer.head(op, shape, 16)
            writer.emit(layer)
            shape = words.shape_of(layer)
        if len(writer.weights) <= machine.weight_words:
            sizes = [(2, machine.capacity_words(each), 16) for each in ("fmap", "skip")]
            words.compare(writer, *(random.integers(-128, 128, size).astype(np.int8) for size in sizes))
            done += 1
    assert done > len(pairs) / 2


@pytest.mark.parametrize("machine", MACHINES)
def test_strips_of_documented_words(machine: str, tmp_path: Path) -> None:
    """Their words have more padding above than their kernels reach, and read the first rows of kept maps."""
    onnx.save(MODELS["resnet8"](), tmp_path / "m.onnx")
    found = expect_the_simulators_bits_and_cycles(tmp_path / "m.onnx", tmp_path, machine, "documented")
    assert any(each.get("unused_rows") for each in found.manifest["instructions"])


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/models")
def test_a_trained_network_with_squeeze_and_excitation(tmp_path: Path) -> None:
    """On an image of a third of its width."""
    model = onnx.load(SHARED / "ppocr_cls.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 64
    del model.graph.value_info[:]
    onnx.save(model, tmp_path / "m.onnx")
    found = expect_the_simulators_bits_and_cycles(tmp_path / "m.onnx", tmp_path, "default")
    assert any(each["mnemonic"].startswith("mul") for each in found.manifest["instructions"])
