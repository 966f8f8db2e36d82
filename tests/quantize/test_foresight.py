"""What shapes alone refuse is refused before samples are run, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc import driver
from npuc.errors import DoesNotFit, NpucError
from npuc.samples.loading import save, synthetic
from npuc.target import Foreseeing, Options, Request, target


def _network(path: Path, channels: int, size: int, kernels: int) -> Path:
    """Two convolutions, a sum over the second, and a pool."""
    random = np.random.default_rng(5)
    w = random.normal(0.1, 0.2, (kernels, channels, 3, 3)).astype(np.float32)
    v = random.normal(-0.1, 0.2, (kernels, kernels, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first", pads=[1] * 4),
        helper.make_node("Conv", ["a", "v"], ["b"], "second", pads=[1] * 4),
        helper.make_node("Add", ["a", "b"], ["c"], "sum"),
        helper.make_node("MaxPool", ["c"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, size, size])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(v, "v")]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


SMALL = {
    "easynpu": ("int8", "weight_words = 20\n"),
    "nvdla-small": ("int8", "cbuf_banks = 4\ncbuf_entries = 16\n"),
    "nvdla-full": ("fp16", "cbuf_banks = 4\ncbuf_entries = 8\n"),
    "bm1684": ("int8", "local_bytes = 1024\n"),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_memory_that_is_too_small_is_refused_before_many_samples_are_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("samples are run")

    def compiled(samples: int, machine: Path | None) -> None:
        save(data, {"x": np.ones((samples, 64, 8, 8), np.float32)})
        options = Options(machine and str(machine), precision=precision, strict=True)
        driver.compilation(Request(model, target(name), options, [data]))

    precision, text = SMALL[name]
    machine = tmp_path / "machine.toml"
    machine.write_text(text, encoding="utf-8")
    model = _network(tmp_path / "model.onnx", 64, 8, 32)
    data = tmp_path / "data.npz"
    monkeypatch.setattr(driver, "LONG", 5 * 64 * 32 * (18 + 9) * 32)
    monkeypatch.setattr(type(target(name)), "lower", never)
    with pytest.raises(DoesNotFit) as caught:
        compiled(5, machine)
    (problem,) = caught.value.problems
    assert problem.code in ("E302", "E303")
    assert problem.node and problem.op and problem.limit and problem.remedy
    for samples, given in ((5, None), (4, machine)):  # large enough, and run in no time
        with pytest.raises(AssertionError, match="samples are run"):
            compiled(samples, given)


MAPS = [("fmap_words", 3), ("fmap_words", 60), ("weight_words", 20), ("weight_words", 130)]
MACHINES = {
    "easynpu": ("int8", "{} = {}\n", MAPS),
    "nvdla-small": ("int8", "cbuf_banks = {}\ncbuf_entries = {}\n", [(4, 8), (16, 256)]),
    "nvdla-full": ("fp16", "cbuf_banks = {}\ncbuf_entries = {}\n", [(4, 8), (16, 256)]),
    "bm1684": ("int8", "local_bytes = {}{}\n", [("", 1024), ("", 4096), ("", 16384)]),
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_foreseen_is_what_the_real_plan_refuses(name: str, tmp_path: Path) -> None:
    precision, text, values = MACHINES[name]
    chip, outcomes = target(name), list[tuple[bool, bool]]()
    assert isinstance(chip, Foreseeing)
    model = _network(tmp_path / "model.onnx", 48, 6, 32)
    for value in values:
        machine = tmp_path / "machine.toml"
        machine.write_text(text.format(*value), encoding="utf-8")
        options = Options(str(machine), precision=precision, level="0")
        graph = driver.optimised(Request(model, chip, options))
        if chip.problems(graph, options):
            continue
        foreseen = refused = None
        try:
            chip.foresee(graph, options)
        except DoesNotFit as error:
            foreseen = error.problems
        try:
            chip.lower(graph, synthetic(driver.input_types(graph), 2), options)
        except NpucError as error:
            refused = error.problems
        outcomes.append((foreseen is not None, refused is not None))
        assert foreseen is None or foreseen == refused, value
    assert (True, True) in outcomes
    assert (False, False) in outcomes
    assert (False, True) not in outcomes
