"""Host steps in C: every operator against numpy, copies with few axes, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.errors import UnsupportedOperator
from npuc.host.copies import Copy, copies_of
from npuc.host.step import HostStep
from npuc.ir import Array, Node, TensorType
from npuc.program import Program
from npuc.targets.easynpu.export.c_plan import plan
from npuc.targets.easynpu.machine.parameters import Machine
from tests.easynpu_c import compiling
from tests.easynpu_c.compiling import EASYNPU

RANDOM = np.random.default_rng(3)


def step(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> HostStep:
    return HostStep(f"{op} of {inputs[0]}", op, tuple(inputs), tuple(outputs), attrs, False, "")


def program_of(
    steps: Sequence[HostStep], inputs: Mapping[str, tuple[int, ...]], outputs: Mapping[str, tuple[Any, str]]
) -> Program:
    """A program of host steps only."""
    entries = [
        {
            "kind": "host", "node": each.node, "op": each.op, "inputs": list(each.inputs),
            "outputs": list(each.outputs), "conversion": each.conversion, "reason": each.reason,
            "attrs": {key: list(v) if isinstance(v, tuple) else v for key, v in each.attrs.items()},
        }
        for each in steps
    ]  # fmt: skip
    manifest: dict[str, Any] = {
        "target": "easynpu", "machine": Machine().as_dict(), "steps": entries, "instructions": [],
        "inputs": [{"name": name, "shape": list(shape), "dtype": "float32"} for name, shape in inputs.items()],
        "outputs": [
            {"name": name, "shape": list(shape), "dtype": dtype} for name, (shape, dtype) in outputs.items()
        ],
    }  # fmt: skip
    return Program(manifest, {"itcm.bin": b"", "weight.bin": b""})


def computed(
    steps: Sequence[HostStep],
    feeds: Mapping[str, Array],
    expected: Mapping[str, Array],
    folder: Path,
    flags: Sequence[str] = compiling.STRICT,
) -> dict[str, Array]:
    """The outputs of one sample."""
    inputs = {name: values.shape for name, values in feeds.items()}
    outputs = {name: (values.shape, str(values.dtype)) for name, values in expected.items()}
    found = program_of(steps, inputs, outputs)
    binary = compiling.exported(found, folder, flags)
    return {
        name: values[0]
        for name, values in compiling.run(binary, found, {k: v[None] for k, v in feeds.items()}).items()
    }


def test_movement_is_what_numpy_says(tmp_path: Path) -> None:
    x = RANDOM.standard_normal((1, 8, 6, 4)).astype(np.float32)
    u = RANDOM.standard_normal((1, 3, 6, 4)).astype(np.float32)
    steps = [
        step("Transpose", ["x"], ["transposed"], perm=(0, 3, 1, 2)),
        step("Slice", ["x"], ["sliced"], axes=(1, 3), starts=(6, 0), ends=(-1, 4), steps=(-2, 3)),
        step("Concat", ["x", "u", "x"], ["joined"], axis=1),
        step("Concat", ["x", "x"], ["twice"], axis=3),
        step("Split", ["x"], ["first", "second"], axis=2, split=(1, 5)),
        step("SpaceToDepth", ["x"], ["deep"], blocksize=2),
        step("DepthToSpace", ["x"], ["wide"], blocksize=2),
        step("DepthToSpace", ["x"], ["crd"], blocksize=2, mode="CRD"),
        step("Reshape", ["transposed"], ["rows"], shape=(1, 32, 6)),
        step("Identity", ["x"], ["same"]),
    ]
    wide = x.reshape(1, 2, 2, 2, 6, 4)  # b, b, C/4, H, W
    crd = x.reshape(1, 2, 2, 2, 6, 4)  # C/4, b, b, H, W
    expected = {
        "transposed": x.transpose(0, 3, 1, 2),
        "sliced": x[:, 6::-2][..., ::3],
        "joined": np.concatenate([x, u, x], axis=1),
        "twice": np.concatenate([x, x], axis=3),
        "first": x[:, :, :1],
        "second": x[:, :, 1:],
        "deep": np.concatenate([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)], axis=1),
        "wide": wide.transpose(0, 3, 4, 1, 5, 2).reshape(1, 2, 12, 8),
        "crd": crd.transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 12, 8),
        "rows": x.transpose(0, 3, 1, 2).reshape(1, 32, 6),
        "same": x,
    }
    found = computed(steps, {"x": x, "u": u}, expected, tmp_path / "c", compiling.careful_flags())
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_quantisation_rounds_half_to_even_and_saturates(tmp_path: Path) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, 1e9, -128.5, -129, -np.inf, np.nan, 0.1], np.float32)
    steps = [
        step("QuantizeLinear", ["x"], ["q"], scale=1.0),
        step("DequantizeLinear", ["q"], ["y"], scale=0.25),
        step("QuantizeLinear", ["x"], ["tenth"], scale=0.1),
    ]
    q = np.array([0, 2, 2, 0, -2, 126, 127, 127, -128, -128, -128, 0, 0], np.int8)
    tenth = np.array([5, 15, 25, -5, -15, 127, 127, 127, -128, -128, -128, 0, 1], np.int8)
    expected = {"q": q, "y": q.astype(np.float32) / 4, "tenth": tenth}
    for name, values in computed(steps, {"x": x}, expected, tmp_path / "c").items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_reductions_along_any_axis(tmp_path: Path) -> None:
    x = np.round(RANDOM.standard_normal((2, 5, 3)) * 4).astype(np.float32)
    steps = [
        step("Softmax", ["x"], ["p"], axis=1),
        step("LogSoftmax", ["x"], ["log"], axis=2),
        step("ArgMax", ["x"], ["best"], axis=1, keepdims=1),
        step("ArgMax", ["x"], ["last"], axis=0, keepdims=0, select_last_index=1),
    ]
    powers = np.exp(x.astype(np.float64))
    flipped = np.argmax(x[::-1], axis=0)
    expected = {
        "p": (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32),
        "log": (x - np.log(powers.sum(axis=2, keepdims=True))).astype(np.float32),
        "best": np.argmax(x, axis=1, keepdims=True).astype(np.int64),
        "last": (1 - flipped).astype(np.int64),
    }
    for name, values in computed(steps, {"x": x}, expected, tmp_path / "c").items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_response_normalisation_sums_the_channels_that_exist(tmp_path: Path) -> None:
    x = RANDOM.standard_normal((1, 5, 2, 2)).astype(np.float32)
    squares = np.square(x.astype(np.float64))
    steps: list[HostStep] = []
    expected: dict[str, Array] = {}
    for size in (1, 2, 3, 9):
        low, high = (size - 1) // 2, size // 2
        total = np.stack([squares[:, max(c - low, 0) : c + high + 1].sum(axis=1) for c in range(5)], axis=1)
        expected[f"y{size}"] = (x / (1.5 + 0.3 / size * total) ** 0.75).astype(np.float32)
        steps.append(step("LRN", ["x"], [f"y{size}"], size=size, alpha=0.3, beta=0.75, bias=1.5))
    for name, values in computed(steps, {"x": x}, expected, tmp_path / "c").items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_an_output_that_is_an_input_is_copied(tmp_path: Path) -> None:
    x = RANDOM.standard_normal((2, 3)).astype(np.float32)
    steps = [
        step("Identity", ["x"], ["a"]),
        step("Reshape", ["a"], ["b"], shape=(6,)),
        step("Identity", ["b"], ["c"]),
    ]
    expected = {"a": x, "b": x.ravel(), "c": x.ravel()}
    for name, values in computed(steps, {"x": x}, expected, tmp_path / "c").items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_constants_are_read_where_they_lie_and_copied_to_outputs(tmp_path: Path) -> None:
    x = RANDOM.standard_normal((1, 2)).astype(np.float32)
    given = np.array([[0.1, -np.inf, 3e-39]], np.float32)
    steps = [
        HostStep.constant("c", given),
        step("Concat", ["x", "c"], ["joined"], axis=1),
        HostStep.constant("q", np.array([[-128, 127]], np.int8)),
        HostStep.constant("many", np.arange(40, dtype=np.int64) << 30),
    ]
    expected = {
        "joined": np.concatenate([x, given], axis=1),
        "c": given,
        "q": np.array([[-128, 127]], np.int8),
        "many": np.arange(40) << 30,
    }
    for name, values in computed(steps, {"x": x}, expected, tmp_path / "c").items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_a_reshape_between_two_steps_takes_no_step_and_no_memory() -> None:
    steps = [
        step("Softmax", ["x"], ["a"], axis=1),
        step("Reshape", ["a"], ["b"], shape=(4, 1)),
        step("Softmax", ["b"], ["c"], axis=0),
        step("Reshape", ["c"], ["y"], shape=(2, 2)),
    ]
    found = plan(program_of(steps, {"x": (1, 4)}, {"y": ((2, 2), "float32")}))
    assert [each.op for each in found.actions if isinstance(each, Node)] == ["Softmax"] * 2
    assert found.arena_bytes == 16
    assert (found.storage["b"], found.storage["c"]) == ("a", "y")


def applied(copy: Copy, source: bytes, size: int) -> bytes:
    """The bytes of the target after a copy, by the definition of its axes."""
    target = bytearray(size)
    steps = [(copy.source, copy.target)]
    for axis in copy.axes:
        steps = [(a + i * axis.source, b + i * axis.target) for a, b in steps for i in range(axis.extent)]
    for a, b in steps:
        assert 0 <= a <= len(source) - copy.piece
        target[b : b + copy.piece] = source[a : a + copy.piece]
    return bytes(target)


@st.composite
def transposed(draw: st.DrawFn) -> tuple[HostStep, Array, Array]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)))
    perm = tuple(draw(st.permutations(range(len(shape)))))
    x = np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)
    return step("Transpose", ["x"], ["y"], perm=perm), x, x.transpose(perm)


@st.composite
def sliced(draw: st.DrawFn) -> tuple[HostStep, Array, Array]:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    x = np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)
    starts, ends, steps = [], [], []
    for extent in shape:
        at, size = draw(st.integers(0, extent - 1)), draw(st.integers(1, 6))
        forward = draw(st.booleans())
        starts.append(at)
        ends.append(min(at + size, extent) if forward else max(at - size, -1))
        steps.append(draw(st.integers(1, 3)) * (1 if forward else -1))
    cuts = [slice(a, None if b < 0 else b, c) for a, b, c in zip(starts, ends, steps, strict=True)]
    attrs = {"axes": tuple(range(len(shape))), "starts": tuple(starts), "ends": tuple(ends), "steps": tuple(steps)}
    return step("Slice", ["x"], ["y"], **attrs), x, x[tuple(cuts)]


@given(st.one_of(transposed(), sliced()))
@settings(max_examples=150, deadline=None)
def test_a_copy_with_merged_axes_moves_every_element(case: tuple[HostStep, Array, Array]) -> None:
    made, x, y = case
    types = {"x": TensorType(x.shape, "int16"), "y": TensorType(y.shape, "int16")}
    ((_, _, copy),) = copies_of(made.as_node()[0], types)
    assert applied(copy, x.tobytes(), y.nbytes) == np.ascontiguousarray(y).tobytes()


def test_neighbouring_axes_are_merged() -> None:
    made = step("Transpose", ["x"], ["y"], perm=(0, 2, 3, 1))
    types = {"x": TensorType((1, 3, 5, 7), "int8"), "y": TensorType((1, 5, 7, 3), "int8")}
    ((_, _, copy),) = copies_of(made.as_node()[0], types)
    assert [axis.extent for axis in copy.axes] == [35, 3]


def test_an_operator_that_the_library_lacks_is_refused_by_name() -> None:
    made = step("GlobalAveragePool", ["x"], ["y"])
    with pytest.raises(UnsupportedOperator) as raised:
        EASYNPU.export(program_of([made], {"x": (1, 1, 2, 2)}, {"y": ((1, 1, 1, 1), "float32")}), "c")
    (problem,) = raised.value.problems
    assert (problem.code, problem.node, problem.op) == ("E202", "GlobalAveragePool of x", "GlobalAveragePool")
    assert problem.limit is not None and "Softmax" in problem.limit


@pytest.mark.parametrize("rank", [7, 8, 9])
def test_a_copy_along_more_than_eight_axes_is_refused(rank: int, tmp_path: Path) -> None:
    x = np.arange(2**rank, dtype=np.float32).reshape((2,) * rank)
    made = [step("Transpose", ["x"], ["y"], perm=tuple(range(rank - 1, -1, -1)))]
    if rank > 8:
        with pytest.raises(UnsupportedOperator, match="8 axes"):
            EASYNPU.export(program_of(made, {"x": x.shape}, {"y": (x.shape, "float32")}), "c")
    else:
        found = computed(made, {"x": x}, {"y": x.T}, tmp_path / "c", compiling.careful_flags())
        np.testing.assert_array_equal(found["y"], x.T)


def test_an_element_type_that_the_driver_lacks_is_refused() -> None:
    found = program_of([step("Identity", ["x"], ["y"])], {"x": (2,)}, {"y": ((2,), "float64")})
    inputs = [{"name": "x", "shape": [2], "dtype": "float64"}]
    with pytest.raises(UnsupportedOperator, match="no float64 tensors"):
        plan(Program({**found.manifest, "inputs": inputs}, {}))
