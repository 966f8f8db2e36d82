"""The document's local short-cut, psum += m * ifmap: words that keep psums, and what the compiler makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc import program, running
from npuc.ir import Array
from npuc.reference import session
from npuc.target import Options, Request
from npuc.targets.easynpu.target import EASYNPU
from tests.compiled import compilation
from tests.easynpu.naive import CONTROL, CONV, CONV_RELU, CTL, DWCONV, FUSED, word
from tests.easynpu.test_simulator import Writer, compare, noise, run_both
from tests.onnx_models import parse

HEIGHT, WIDTH, SHIFT = 5, 4, 5


def block(w: Array, bias: Array, shift: int) -> Array:
    """Bias-scale words and weights (Ci, Hk, Wk, Co) or channel-wise (Hk, Wk, Co), as the DTCM has them."""
    groups = -(-w.shape[-1] // 16)

    def lanes(values: Array) -> Array:
        missing = [(0, 0)] * (values.ndim - 1) + [(0, groups * 16 - values.shape[-1])]
        return np.pad(values, missing).reshape(*values.shape[:-1], groups, 16)

    planes = [lanes(bias >> (8 * j) & 0xFF) for j in range(4)] + [np.full((groups, 16), -shift)]
    head = np.stack(planes, axis=1).reshape(-1, 16)
    weights = lanes(w) if w.ndim == 4 else np.moveaxis(lanes(w), -2, 0)
    return (np.concatenate([head, weights.reshape(-1, 16)]) & 0xFF).astype(np.uint8).view(np.int8)


def short_cut(opcodes: tuple[int, int], first: Array, bias: Array, second: Array) -> Writer:
    """`ctl keep_psum`, a 3x3 word over the current map, and a 1x1 word over the same map."""
    writer = Writer(np.random.default_rng(0))
    channels = first.shape[-1]
    same = {"Hi": HEIGHT, "Wi": WIDTH, "Ci": channels, "Ho": HEIGHT, "Wo": WIDTH, "Co": channels}
    same |= {"Zs": -(-channels // 16), "Sh": 1, "Sw": 1, "y": 2, "x": 4}
    window = {"Hk": 3, "Wk": 3, "Ph": 1, "Pw": 1, "yi": 4, "xi": 6}
    writer.words.append(word(CONTROL, opcode=CTL, keep=1))
    writer.emit({**same, **window, "opcode": opcodes[0]}, FUSED)
    writer.emit({**same, "yi": 2, "xi": 4, "opcode": opcodes[1]})
    writer.stream = [block(first, bias, 0), block(second, np.zeros_like(bias), SHIFT)]
    return writer


def summed(x: Array, w: Array) -> Array:
    """Sums of a 3x3 window over (H, W, C), padded by zeros; w: (Ci, 3, 3, Co), or (3, 3, C)."""
    padded = np.pad(x.astype(np.int64), ((1, 1), (1, 1), (0, 0)))
    taps = [(padded[i : i + HEIGHT, j : j + WIDTH], i, j) for i in range(3) for j in range(3)]
    return np.asarray(sum(tap @ w[:, i, j] if w.ndim == 4 else tap * w[i, j] for tap, i, j in taps))


@pytest.mark.parametrize("channels", [16, 20])
@pytest.mark.parametrize("last", [CONV, CONV_RELU])
def test_a_convolution_and_its_ifmap_are_summed_before_they_are_rounded(channels: int, last: int) -> None:
    random = np.random.default_rng(channels)
    w = random.integers(-9, 10, (channels, 3, 3, channels))
    m, bias = random.integers(-127, 128, channels), random.integers(-300, 300, channels)
    writer = short_cut((CONV, last), w, bias, np.diag(m)[:, None, None])
    fmap, skip = noise(random)
    compare(writer, fmap.copy(), skip.copy())
    (_, _, result), _ = run_both(writer, fmap, skip)
    groups = -(-channels // 16)
    x = fmap[0, : HEIGHT * WIDTH * groups].reshape(HEIGHT, WIDTH, -1)[..., :channels].astype(np.int64)
    expected = np.clip((summed(x, w) + bias + m * x + (1 << SHIFT - 1)) >> SHIFT, -128, 127)
    np.testing.assert_array_equal(result[0], np.maximum(expected, 0) if last == CONV_RELU else expected)


def test_a_depthwise_convolution_and_its_ifmap_are_summed_channel_by_channel() -> None:
    random = np.random.default_rng(1)
    w, m = random.integers(-60, 60, (3, 3, 20)), random.integers(-127, 128, 20)
    bias = random.integers(-300, 300, 20)
    writer = short_cut((DWCONV, DWCONV), w, bias, m[None, None])
    fmap, skip = noise(random)
    compare(writer, fmap.copy(), skip.copy())
    (_, _, result), _ = run_both(writer, fmap, skip)
    x = fmap[0, : HEIGHT * WIDTH * 2].reshape(HEIGHT, WIDTH, -1)[..., :20].astype(np.int64)
    expected = np.clip((summed(x, w) + bias + m * x + (1 << SHIFT - 1)) >> SHIFT, -128, 127)
    np.testing.assert_array_equal(result[0], expected)


def test_the_sum_is_rounded_once_where_an_addition_of_int8_rounds_twice() -> None:
    """Psum 16 and ifmap 1 times 16, shift 5: (16 + 16) / 32 = 1; rounded apart, 1/2 and 1/2 give 1 + 1 = 2."""
    w = np.zeros((3, 3, 16), np.int64)
    writer = short_cut((DWCONV, DWCONV), w, np.full(16, 16), np.full((1, 1, 16), 16))
    fmap, skip = noise(np.random.default_rng(2), samples=1)
    fmap[:, : HEIGHT * WIDTH] = 1
    (_, _, result), _ = run_both(writer, fmap, skip)
    assert (result == 1).all()


@pytest.mark.parametrize("isa", ["documented", "extended"])
def test_the_compiler_adds_the_ifmap_within_a_depthwise_word_and_rounds_once(tmp_path: Path, isa: str) -> None:
    """y = conv(x) + x: no sum is left, nothing is kept, and the words' int8 are the reference's."""
    random = np.random.default_rng(3)
    channels, size = 20, 9
    body = "{ c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 20>(x, w, b)\n y = Add(c, x) }"
    shape = f"float[1,{channels},{size},{size}]"
    weights = {"w": random.standard_normal((channels, 1, 3, 3)) / 3, "b": random.standard_normal(channels)}
    model = parse(f"g ({shape} x) => ({shape} y) {body}", **weights)
    onnx.save(model, tmp_path / "m.onnx")
    made = compilation(Request(tmp_path / "m.onnx", EASYNPU, Options(flags={"isa": isa})))
    compiled, samples = made.program, made.samples
    assert [layer["op"] for layer in compiled.manifest["report"]["layers"]] == ["dwconv"]
    assert compiled.manifest["isa"] == "documented"
    program.save(compiled, tmp_path / "m.npu")
    loaded = program.load(tmp_path / "m.npu")
    evidence = program.load_evidence(tmp_path / "m.npu", loaded)
    exact = session(evidence["reference.onnx"])
    simulated = running.run_program(loaded, EASYNPU, samples)["y"]
    for x, y in zip(samples.inputs["x"], simulated, strict=True):
        np.testing.assert_array_equal(exact.run(["y"], {"x": x})[0].reshape(y.shape), y)
