"""The simulator against a slow interpreter of the document's loop nest, on random programs over noisy memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from npuc.errors import ArtefactError, NpucError
from npuc.ir import Array
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import ImageLoad, Segment
from npuc.targets.easynpu.simulate.simulator import Simulator
from tests.easynpu import naive
from tests.easynpu.naive import (
    ACT,
    ADD,
    AVGPOOL,
    BN,
    CONTROL,
    CONV,
    CONV_RELU,
    CTL,
    DST,
    DWCONV,
    DWCONV_RELU,
    FUSED,
    HALT,
    LAYER,
    MAXPOOL,
    MUL,
    OPB,
    OPERAND,
    PRELU,
    RELU,
    SRC,
    STO,
    STORED,
    word,
)

WORDS = 700
MACHINE = Machine(fmap_words=WORDS, skip_words=WORDS, weight_words=3000)
SAMPLES = 2
HEADS = (CONV, CONV_RELU, DWCONV, DWCONV_RELU, BN, RELU, ACT, PRELU, MAXPOOL, AVGPOOL, ADD, MUL)
FOLLOWERS = (BN, RELU, ACT, PRELU, ADD, MUL)


@dataclass
class Writer:
    """Collects the words of a program and its weight stream; geometry is drawn from `random`."""

    random: np.random.Generator
    extreme: bool = False
    machine: Machine = MACHINE
    words: list[int] = field(default_factory=list[int])
    stream: list[Array] = field(default_factory=list[Array])

    def number(self, low: int, high: int) -> int:
        return int(self.random.integers(low, high + 1))

    def window(self, shape: tuple[int, int, int], Co: int, dense: bool) -> dict[str, int]:
        """A window over a map (H, W, C) with any padding, stride and dilation, and a legal tile."""
        Hi, Wi, Ci = shape
        while True:
            found = {"Hi": Hi, "Wi": Wi, "Ci": Ci, "Co": Co, "Zs": -(-Co // 16)}
            for axis in "hw":
                found[f"S{axis}"] = self.number(1, 3)
                found[f"P{axis}"] = self.number(0, 3) if self.number(0, 7) else self.number(0, 15)
                found[f"D{axis}"] = self.number(0, 1) if self.number(0, 4) else self.number(0, 6)
            found |= {"Hk": self.number(1, 3), "Wk": self.number(1, 4)}
            found |= {"Ho": self.number(1, 6), "Wo": self.number(1, 6)}
            found |= {"y": self.number(1, found["Ho"]), "x": self.number(1, found["Wo"])}
            if self.fits(found, dense):
                return found

    def fits(self, found: dict[str, int], dense: bool) -> bool:
        """Fills in x' and y'; whether pads and psums hold the tile."""
        found["yi"] = found["Sh"] * (found["y"] - 1) + (found["Dh"] + 1) * (found["Hk"] - 1) + 1
        found["xi"] = found["Sw"] * (found["x"] - 1) + (found["Dw"] + 1) * (found["Wk"] - 1) + 1
        psums = -(-found["y"] * found["x"] // self.machine.pe_rows) * (found["Zs"] if dense else 1)
        return found["yi"] * found["xi"] <= 64 and psums <= self.machine.psum_entries

    def pointwise(self, layer: Mapping[str, int]) -> dict[str, int]:
        """A word over the pixels of another's result, on its tile."""
        same = {key: layer[key] for key in ("Ho", "Wo", "Co", "Zs", "y", "x")}
        return same | {
            "Sh": 1, "Sw": 1, "Hi": layer["Ho"], "Wi": layer["Wo"], "Ci": layer["Co"], "yi": layer["y"],
            "xi": layer["x"],
        }  # fmt: skip

    def head(self, op: int, shape: tuple[int, int, int], Co: int | None = None) -> dict[str, int]:
        """The first word of a chain, without flags."""
        dense = op in (CONV, CONV_RELU)
        outputs = (Co or self.number(1, 40)) if dense else shape[2]
        if op in (RELU, ACT, PRELU, ADD, MUL):
            layer = {"Ho": shape[0], "Wo": shape[1], "Co": shape[2], "Zs": -(-shape[2] // 16)}
            layer |= {"y": self.number(1, shape[0]), "x": self.number(1, shape[1])}
            return self.pointwise(layer) | {"opcode": op}
        return self.window(shape, outputs, dense) | {"opcode": op}

    def emit(self, layer: Mapping[str, int], flags: int = 0, *, biased: bool = True) -> None:
        """Appends a layer word and its block of the weight stream."""
        self.words.append(word(LAYER, **{**layer, "opcode": layer["opcode"] | flags}))
        self.block(layer, biased=biased)

    def block(self, layer: Mapping[str, int], *, biased: bool = True) -> None:
        """A bias-scale block and weights such that results rarely saturate; biases also in unused lanes.

        biased: unless the adder has another input there: kept psums, or the operand of a sum or product.
        """
        op, groups = layer["opcode"], -(-layer["Co"] // 16)
        if op in (RELU, MAXPOOL):
            return
        if op in (ACT, PRELU):
            self.stream.append(self.table() if op == ACT else self.slopes(groups))
            return
        taps = layer["Hk"] * layer["Wk"] * (layer["Ci"] if op in (CONV, CONV_RELU) else 1) if "Hk" in layer else 1
        count = 0 if op in (ADD, MUL) else taps * groups
        w = self.random.integers(-128, 128, (count, 16))
        bits = {ADD: 8, MUL: 14}.get(op, 13 + int(np.log2(taps + 1) / 2))
        reach = self.number(0, 26) if self.number(0, 3) == 0 else self.number(0, bits)
        if self.extreme:
            w, reach, bits = self.random.choice([-128, -127, 126, 127], (count, 16)), 27, 13 + int(np.log2(taps))
        bias = self.random.integers(-(1 << reach), 1 << reach, (groups, 16))
        centre = max(bits, reach) - 6
        scale = -np.clip(self.random.integers(centre - 4, centre + 3, (groups, 16)), 0, 31)
        if self.number(0, 9) == 0:
            scale = self.random.choice([0, -1, -31], (groups, 16))
        if self.number(0, 9) == 0:  # left shifts, of psums so small that 32 bits hold them
            scale, bias, w = self.random.integers(0, 6, (groups, 16)), bias % 256, w
        bias *= biased and op not in (ADD, MUL)
        planes = [(bias >> (8 * j)) & 0xFF for j in range(4)] + [scale & 0xFF]
        self.stream.append(np.stack(planes, axis=1).reshape(-1, 16).astype(np.uint8).view(np.int8))
        self.stream.append(w.astype(np.int8))

    def table(self) -> Array:
        """Some segments, the last repeated over the lanes behind it, with results that rarely saturate."""
        last = np.minimum(np.arange(16), self.number(0, 15))
        start = np.sort(self.random.integers(-128, 128, 16))
        start[0] = -128
        shift = self.number(0, 8) if self.number(0, 3) else self.number(0, 31)
        b = self.random.integers(-(1 << min(shift + 7, 30)), 1 << min(shift + 7, 30), 16)[last]
        planes = [(b >> (8 * j)) & 0xFF for j in range(4)]
        words = [*planes, self.random.integers(-128, 128, 16)[last], start[last], np.full(16, -shift)]
        return (np.stack(words) & 0xFF).astype(np.uint8).view(np.int8)

    def slopes(self, groups: int) -> Array:
        """Multiplier and scale for each sign, mostly right shifts."""
        factors = self.random.integers(-128, 128, (groups, 2, 16))
        scales = -self.random.integers(-2 if self.number(0, 4) == 0 else 4, 10, (groups, 2, 16))
        return np.stack([factors, scales], axis=2).reshape(-1, 16).astype(np.int8)

    def operand(self, role: int, memory: int, place: Mapping[str, int]) -> None:
        """Appends an extension word."""
        self.words.append(word(OPERAND, opcode=role, memory=memory, **place))

    @property
    def weights(self) -> Array:
        return np.concatenate([*self.stream, np.zeros((1, 16), np.int8)])


def run_both(
    writer: Writer, fmap: Array, skip: Array
) -> tuple[list[Array], list[tuple[Array, Array, list[Array]]]]:
    """The simulator's results and memories for all samples, then the interpreter's for each."""
    weights = np.random.default_rng(1).integers(-128, 128, (MACHINE.weight_words, 16)).astype(np.int8)
    stream = writer.weights
    image = b"".join(value.to_bytes(16, "little") for value in writer.words)
    simulator = Simulator(MACHINE, {"itcm.bin": image, "weight.bin": stream.tobytes()})
    state = simulator.state(len(fmap))
    state.fmap[...], state.skip[...], state.weight[...] = fmap, skip, weights
    images = (
        ImageLoad("itcm", 0, "itcm.bin", 0, len(writer.words)),
        ImageLoad("weight", 0, "weight.bin", 0, len(stream)),
    )
    results: list[Array] = []
    simulator.run(Segment(images, (), len(writer.words), ()), state, {}, lambda _, values: results.append(values))
    weights[: len(stream)] = stream
    expected: list[tuple[Array, Array, list[Array]]] = []
    for one, kept in zip(fmap, skip, strict=True):
        npu = naive.Npu(one.astype(np.int64), kept.astype(np.int64), weights.astype(np.int64))
        npu.run(naive.words(image))
        expected.append((npu.fmap, npu.skip, npu.results))
    return [state.fmap, state.skip, *results], expected


def compare(writer: Writer, fmap: Array, skip: Array) -> None:
    """Both must agree in every result and in every word of both memories."""
    (simulated_fmap, simulated_skip, *results), expected = run_both(writer, fmap, skip)
    for sample, (naive_fmap, naive_skip, naive_results) in enumerate(expected):
        assert len(results) == len(naive_results)
        for ours, theirs in zip(results, naive_results, strict=True):
            np.testing.assert_array_equal(ours[sample], theirs)
        np.testing.assert_array_equal(simulated_fmap[sample], naive_fmap)
        np.testing.assert_array_equal(simulated_skip[sample], naive_skip)


def noise(random: np.random.Generator, samples: int = SAMPLES) -> tuple[Array, Array]:
    """Every word of both DTCMs, also those that no map covers and the lanes beyond its channels."""
    shape = (samples, WORDS, 16)
    fmap, skip = (random.integers(-128, 128, shape).astype(np.int8) for _ in range(2))
    return fmap, skip


def shape_of(layer: Mapping[str, int]) -> tuple[int, int, int]:
    return layer["Ho"], layer["Wo"], layer["Co"]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("op", HEADS)
def test_a_single_word_computes_what_the_loop_nest_computes(op: int, seed: int) -> None:
    random = np.random.default_rng((op, seed))
    writer = Writer(random)
    shape = (writer.number(1, 8), writer.number(1, 8), writer.number(1, 36))
    writer.emit(writer.head(op, shape), STORED * writer.number(0, 1))
    compare(writer, *noise(random))


@pytest.mark.parametrize("op", [CONV, CONV_RELU, DWCONV, AVGPOOL])
def test_words_that_differ_in_weights_alone_compute_a_sample_alone_with_their_own(op: int) -> None:
    random = np.random.default_rng(op)
    writer = Writer(random)
    layer = writer.head(op, (6, 6, 20))
    for _ in range(3):
        writer.emit(layer)
    compare(writer, *noise(random, 1))


@pytest.mark.parametrize("seed", range(40))
def test_fused_chains_and_their_ends_agree_with_the_loop_nest(seed: int) -> None:
    random = np.random.default_rng(seed)
    writer = Writer(random)
    shape = (writer.number(1, 6), writer.number(1, 6), writer.number(1, 36))
    for _ in range(writer.number(1, 4)):
        layer = writer.head(int(random.choice(HEADS)), shape)
        chain = [layer]
        chain += [
            writer.pointwise(layer) | {"opcode": int(op)} for op in random.choice(FOLLOWERS, writer.number(0, 3))
        ]
        for position, stage in enumerate(chain):
            # one word at most stores, and it does not follow one that reads the map it replaces
            stores = position == len(chain) - 1 and writer.number(0, 2) == 0
            writer.emit(stage, FUSED * (position < len(chain) - 1) | STORED * stores)
        shape = shape_of(layer)
    if writer.number(0, 1):
        writer.words.append(HALT)
        writer.words.append(0x03)  # beyond the end: never decoded as an instruction
    compare(writer, *noise(random))


def pitched(writer: Writer, start: int, shape: tuple[int, int, int], order: int) -> tuple[dict[str, int], int]:
    """A place from a word on, in one of several orders and with gaps; and the word behind it."""
    height, width, groups = shape[0], shape[1], -(-shape[2] // 16)
    gap = writer.number(0, 2)
    if order == 0:  # [H][W][C/16] with gaps
        pixel = groups + gap
        row = pixel * width + writer.number(0, 2)
        found = {"row": row, "pixel": pixel, "group": 1}
    elif order == 1:  # [C/16][H][W]
        found = {"row": width, "pixel": 1, "group": width * height + gap}
    else:  # [W][C/16][H]
        found = {"row": 1, "pixel": groups * height, "group": height}
    end = start + (height - 1) * found["row"] + (width - 1) * found["pixel"] + (groups - 1) * found["group"] + 1
    return {"base": start, **found}, end


@pytest.mark.parametrize("seed", range(40))
def test_explicit_operands_lie_where_their_pitches_say(seed: int) -> None:
    random = np.random.default_rng((seed, 1))
    writer = Writer(random)
    shape = (writer.number(1, 5), writer.number(1, 5), writer.number(1, 36))
    source, at = 0, [0, 0]  # the memory of the current map, and the first free word of each
    place, at[0] = pitched(writer, 0, shape, writer.number(0, 2))
    for _ in range(3):
        layer = writer.head(int(random.choice(HEADS)), shape)
        chain = [layer]
        chain += [
            writer.pointwise(layer) | {"opcode": int(op)} for op in random.choice(FOLLOWERS, writer.number(0, 2))
        ]
        for position, stage in enumerate(chain):
            last = position == len(chain) - 1
            if position == 0:
                writer.operand(SRC, source, place)
            if stage["opcode"] in (ADD, MUL):
                broadcast = {"base": writer.number(0, 500), "row": 0, "pixel": 0, "group": writer.number(0, 1)}
                columns = {"base": writer.number(0, 500), "row": writer.number(0, 3), "pixel": 0, "group": 0}
                # read from the skip memory's upper half, which nothing is written to
                reads = (broadcast, columns)[writer.number(0, 1)]
                writer.operand(OPB, 1, reads | {"base": 400 + reads["base"] % 200})
            if last:
                source = writer.number(0, 1)
                place, at[source] = pitched(writer, at[source], shape_of(layer), writer.number(0, 2))
                writer.operand(DST, source, place)
            stored = last and writer.number(0, 3) == 0
            if stored:
                kept, at[1 - source] = pitched(writer, at[1 - source], shape_of(layer), 0)
                writer.operand(STO, 1 - source, kept)
            writer.emit(stage, FUSED * (not last) | STORED * stored)
        shape = shape_of(layer)
        if at[0] > 400 or at[1] > 250:
            break
    compare(writer, *noise(random))


@pytest.mark.parametrize("seed", range(30))
def test_kept_psums_accumulate_over_words_that_read_maps_of_their_own(seed: int) -> None:
    random = np.random.default_rng((seed, 2))
    writer = Writer(random)
    op = int(random.choice([CONV, DWCONV]))
    first_shape = (writer.number(2, 6), writer.number(2, 6), writer.number(1, 36))
    last = writer.head(op, first_shape)
    parts = []
    while len(parts) < writer.number(1, 2):
        Ci = writer.number(1, 36) if op == CONV else last["Co"]
        part = writer.head(op, (writer.number(2, 6), writer.number(2, 6), Ci), last["Co"])
        part |= {key: last[key] for key in ("Ho", "Wo", "y", "x")}
        if writer.fits(part, op == CONV):
            parts.append(part)
    for part in parts:
        place, _ = pitched(writer, writer.number(0, 30), (part["Hi"], part["Wi"], part["Ci"]), 0)
        writer.operand(SRC, 1, place)
        writer.words.append(word(CONTROL, opcode=CTL, keep=1))
        writer.emit(part, FUSED, biased=part is parts[0])
    relu = writer.number(0, 1)
    writer.emit(last | {"opcode": last["opcode"] + 4 * relu}, FUSED, biased=False)
    writer.emit(writer.pointwise(last) | {"opcode": int(random.choice(FOLLOWERS))})
    compare(writer, *noise(random))


@pytest.mark.parametrize("seed", range(30))
def test_psums_stay_in_the_pads_from_chain_to_chain(seed: int) -> None:
    random = np.random.default_rng((seed, 4))
    writer = Writer(random)
    op = int(random.choice([CONV, DWCONV]))
    last: dict[str, int] = {}
    while not last or not writer.fits(last, op == CONV):
        channels = writer.number(1, 36 if op == CONV else 16)
        last = writer.head(op, (writer.number(2, 6), writer.number(2, 6), channels))
        last |= {"y": last["Ho"], "x": last["Wo"]}
    parts: list[dict[str, int]] = []
    while len(parts) < writer.number(1, 4):
        Ci = writer.number(1, 36) if op == CONV else last["Co"]
        part = writer.head(op, (writer.number(2, 6), writer.number(2, 6), Ci), last["Co"])
        part |= {key: last[key] for key in ("Ho", "Wo", "y", "x")}
        if writer.fits(part, op == CONV):
            parts.append(part)
    taking = False
    for part in parts:
        leaving = part is parts[0] or bool(writer.number(0, 1))
        place, _ = pitched(writer, writer.number(0, 30), (part["Hi"], part["Wi"], part["Ci"]), 0)
        writer.operand(SRC, 1, place)
        writer.words.append(word(CONTROL, opcode=CTL, keep=1, take=int(taking)))
        writer.emit(part, 0 if leaving else FUSED, biased=part is parts[0])
        taking = leaving
    if taking:
        writer.words.append(word(CONTROL, opcode=CTL, take=1))
    writer.emit(last | {"opcode": last["opcode"] + 4 * writer.number(0, 1)}, FUSED, biased=False)
    writer.emit(writer.pointwise(last) | {"opcode": int(random.choice(FOLLOWERS))})
    layer = writer.head(CONV, (last["Ho"], last["Wo"], last["Co"]))
    writer.emit(layer)  # the end of the DTCM that the current map lies at
    compare(writer, *noise(random))


@pytest.mark.parametrize("seed", range(8))
def test_the_weight_stream_can_be_set_to_any_word(seed: int) -> None:
    random = np.random.default_rng((seed, 3))
    writer = Writer(random)
    layer = writer.head(CONV, (3, 3, 5), 5)
    writer.stream.append(random.integers(-128, 128, (writer.number(1, 20), 16)).astype(np.int8))
    start = len(writer.stream[0])
    for _ in range(3):  # the same block again and again
        writer.words.append(word(CONTROL, opcode=CTL, set=1, weights=start))
        writer.words.append(word(LAYER, **layer))
        layer = writer.pointwise(layer) | {"opcode": CONV, "Hk": layer["Hk"], "Wk": layer["Wk"]}
        layer |= {"yi": layer["y"] + layer["Hk"] - 1, "xi": layer["x"] + layer["Wk"] - 1, "Ph": 1, "Pw": 1}
        if layer["yi"] * layer["xi"] > 64:
            break
    writer.block(writer.head(CONV, (3, 3, 5), 5) | {"Hk": layer["Hk"], "Wk": layer["Wk"]})
    compare(writer, *noise(random))


@pytest.mark.parametrize(("Ci", "op"), [(130, CONV), (130, CONV_RELU), (250, CONV), (20, DWCONV), (20, AVGPOOL)])
def test_accumulators_beyond_24_bits_are_exact(Ci: int, op: int) -> None:
    random = np.random.default_rng(Ci)
    writer = Writer(random, extreme=True)
    kernel = {
        "Hk": 3,
        "Wk": 3,
        "Hi": 3,
        "Wi": 4,
        "Ho": 1,
        "Wo": 2,
        "Sh": 1,
        "Sw": 1,
        "y": 1,
        "x": 2,
        "yi": 3,
        "xi": 4,
    }
    Co = 3 if op in (CONV, CONV_RELU) else Ci
    writer.emit(kernel | {"opcode": op, "Ci": Ci, "Co": Co, "Zs": -(-Co // 16)})
    fmap, skip = noise(random)
    fmap = random.choice(np.array([-128, -127, 127], np.int8), fmap.shape)
    compare(writer, fmap, skip)


def test_max_pooling_starts_from_minus_128_and_pads_with_it() -> None:
    # reference, RTL rows 8 and 9: inputs -5, -3, -9 give -3 with the right start, 0 with the wrong one
    writer = Writer(np.random.default_rng(0))
    window = {
        "Hk": 1,
        "Wk": 3,
        "Hi": 1,
        "Wi": 3,
        "Ho": 1,
        "Wo": 3,
        "Pw": 2,
        "Sh": 1,
        "Sw": 1,
        "y": 1,
        "x": 3,
        "yi": 1,
    }
    writer.emit(window | {"opcode": MAXPOOL, "xi": 5, "Ci": 1, "Co": 1, "Zs": 1})
    fmap = np.zeros((1, WORDS, 16), np.int8)
    fmap[0, :3, 0] = [-5, -3, -9]
    (found, *_), _ = run_both(writer, fmap, np.zeros_like(fmap))
    assert found[0, WORDS - 3 :, 0].tolist() == [-3, -3, -5]  # mirrored: the first pixel is the last word


# (psum, scale, result). Source: reference, RTL rows 2 to 7, and the saturating RTL of the seed's time.
RTL = [
    (103, -1, 52), (-87, -2, -22), (-24, -3, -3), (-3, -1, -1), (3, -1, 2), (-1, -1, 0), (1, -1, 1), (5, -2, 1),
    (-5, -2, -1), (7, -2, 2), (-7, -2, -2), (6, -2, 2), (-6, -2, -1), (300, 0, 127), (-300, 0, -128),
    (20000, -2, 127), (3, 4, 48), (-3, 4, -48), (2**31 - 1, -31, 1), (-(2**31) + 1, -31, -1), (2**30, -31, 1),
    (2**30 - 1, -31, 0), (-(2**30), -31, 0), (-(2**30) - 1, -31, -1), (100, 31, None), (128, -32, None),
    (1, 40, None), (1, 127, None), (0, -128, None), (1, 30, 127), (-1, 30, -128), (-1, 31, None),
    (2**24 - 1, -25, 0), (2**24, -25, 1), (-(2**24), -25, 0), (-(2**24) - 1, -25, -1),
]  # fmt: skip


@pytest.mark.parametrize(("psum", "scale", "result"), RTL)
@pytest.mark.parametrize("op", [CONV, BN])
def test_a_psum_is_rounded_half_up_and_saturated(op: int, psum: int, scale: int, result: int | None) -> None:
    writer = Writer(np.random.default_rng(0))
    layer = {"opcode": op, "Hi": 1, "Wi": 1, "Ho": 1, "Wo": 1, "Ci": 1, "Co": 1, "Zs": 1, "y": 1, "x": 1}
    layer |= {"Sh": 1, "Sw": 1, "yi": 1, "xi": 1, "Hk": 1, "Wk": 1}
    writer.words.append(word(LAYER, **layer))
    block = np.zeros((6, 16), np.uint8)
    block[:5, 0] = [(psum >> (8 * j)) & 0xFF for j in range(4)] + [scale & 0xFF]
    writer.stream.append(block.view(np.int8))  # the bias is the psum, weight and map are 0
    zero = np.zeros((1, WORDS, 16), np.int8)
    if result is None:
        with pytest.raises(ArtefactError, match="instruction 0"):
            run_both(writer, zero, zero)
    else:
        (found, *_), _ = run_both(writer, zero, zero)
        assert found[0, WORDS - 1, 0] == result


@pytest.mark.parametrize(
    ("op", "left", "right", "scale", "result"),
    [
        (ADD, 100, 100, 0, 127), (ADD, 5, 6, -1, 6), (ADD, -5, -6, -1, -5), (ADD, -128, -128, -1, -128),
        (ADD, 3, 4, 2, 28), (ADD, 127, 1, -8, 1), (ADD, 127, 0, -8, 0), (ADD, 127, 127, -9, 0),
        (MUL, -128, -128, -7, 127), (MUL, 3, -5, -1, -7), (MUL, 3, 5, -1, 8), (MUL, 127, 127, -9, 32),
        (MUL, 2, -3, 4, -96), (MUL, 127, -127, -31, 0), (MUL, -128, 127, -8, -63),
    ],
)  # fmt: skip
def test_two_maps_are_added_or_multiplied_and_rounded_half_up(
    op: int, left: int, right: int, scale: int, result: int
) -> None:
    writer = Writer(np.random.default_rng(0))
    layer = {"opcode": op, "Hi": 1, "Wi": 1, "Ho": 1, "Wo": 1, "Ci": 1, "Co": 1, "Zs": 1, "y": 1, "x": 1}
    writer.words.append(word(LAYER, **layer, Sh=1, Sw=1, yi=1, xi=1, Hk=1, Wk=1))
    writer.stream.append(np.repeat(np.array([0, 0, 0, 0, scale], np.int8)[:, None], 16, axis=1))
    fmap, skip = np.full((1, WORDS, 16), left, np.int8), np.full((1, WORDS, 16), right, np.int8)
    (found, *_), _ = run_both(writer, fmap, skip)
    assert found[0, WORDS - 1].tolist() == [result] + [0] * 15


@pytest.mark.parametrize("op", [CONV, CONV_RELU])
def test_large_sums_that_a_bias_cancels_keep_their_last_bits(op: int) -> None:
    """240 channels of 3x3 weights times 127 sum to more than 2^25; the bias leaves -128..127 of it."""
    random = np.random.default_rng(0)
    writer = Writer(random)
    window = {
        "Hk": 3,
        "Wk": 3,
        "Hi": 3,
        "Wi": 3,
        "Ho": 1,
        "Wo": 1,
        "Sh": 1,
        "Sw": 1,
        "y": 1,
        "x": 1,
        "yi": 3,
        "xi": 3,
    }
    layer = window | {"opcode": op, "Ci": 240, "Co": 16, "Zs": 1}
    w = random.choice([125, 127], (240 * 9, 16))
    left = random.integers(-128, 128, 16)
    bias = left - 127 * w.sum(axis=0)
    planes = np.stack([(bias >> (8 * j)) & 0xFF for j in range(4)] + [np.zeros(16, np.int64)])
    writer.words.append(word(LAYER, **layer))
    writer.stream += [planes.astype(np.uint8).view(np.int8), w.astype(np.int8)]
    (found, *_), _ = run_both(writer, *(np.full((1, WORDS, 16), 127, np.int8) for _ in range(2)))
    assert np.abs(bias).min() > 1 << 25
    assert found[0, WORDS - 1].tolist() == (left if op == CONV else np.maximum(left, 0)).tolist()


@pytest.mark.parametrize("channels", [20, 32])
def test_every_segment_starts_at_the_low_end_with_the_weights_it_loads(channels: int) -> None:
    """Also where kernels of earlier runs are taken again: their weights were overwritten since."""
    random = np.random.default_rng(4)
    writer = Writer(random)
    layer = writer.head(CONV, (4, 4, channels), channels)
    for _ in range(2):  # two weight blocks behind each other, one word
        writer.block(layer)
    image, stream = word(LAYER, **layer).to_bytes(16, "little"), writer.weights[:-1]
    simulator = Simulator(MACHINE, {"itcm.bin": image, "weight.bin": stream.tobytes()})
    half = len(stream) // 2
    for samples in (1, 3):
        state = simulator.state(samples)
        fmap, _ = noise(random, samples)
        for start in (0, half, 0):
            state.fmap[...] = fmap
            images = (ImageLoad("itcm", 0, "itcm.bin", 0, 1), ImageLoad("weight", 0, "weight.bin", start, half))
            simulator.run(Segment(images, (), 1, ()), state, {})
            weights = stream[start:].astype(np.int64)
            for found, given in zip(state.fmap, fmap, strict=True):
                npu = naive.Npu(given.astype(np.int64), np.zeros((WORDS, 16), np.int64), weights)
                npu.run(naive.words(image))
                np.testing.assert_array_equal(found, npu.fmap)


def test_what_the_memories_held_before_does_not_matter() -> None:
    found = []
    for seed in (1, 2):
        random = np.random.default_rng(5)
        writer = Writer(random)
        layer = writer.head(CONV, (4, 4, 20), 20)
        writer.emit(layer, STORED)
        writer.emit(writer.pointwise(layer) | {"opcode": ADD})
        fmap, skip = noise(np.random.default_rng(seed))
        fmap[:, :32] = np.random.default_rng(9).integers(-128, 128, (SAMPLES, 32, 16))
        (_, _, *results), _ = run_both(writer, fmap, skip)
        found.append(results)
    for left, right in zip(*found, strict=True):
        np.testing.assert_array_equal(left, right)


# What no machine executes. Each case changes a correct word, or puts words around it.

PLAIN = {
    "opcode": CONV, "Sh": 1, "Sw": 1, "Ph": 1, "Pw": 1, "Hk": 3, "Wk": 3, "Hi": 4, "Wi": 4, "Ho": 4, "Wo": 4,
    "y": 2, "x": 4, "yi": 4, "xi": 6, "Ci": 16, "Co": 16, "Zs": 1,
}  # fmt: skip
POINT = PLAIN | {"Hk": 1, "Wk": 1, "Ph": 0, "Pw": 0, "yi": 2, "xi": 4}
FULL = {"base": 0, "row": 4, "pixel": 1, "group": 1}
KEEP, TAKE = word(CONTROL, opcode=CTL, keep=1), word(CONTROL, opcode=CTL, take=1)
ONE_TILE = word(LAYER, **{**POINT, "y": 4, "yi": 4})


def layer_word(**changes: int) -> int:
    return word(LAYER, **{**PLAIN, **changes})


def point_word(**changes: int) -> int:
    return word(LAYER, **{**POINT, **changes})


def operand_word(role: int, memory: int = 0, **changes: int) -> int:
    return word(OPERAND, opcode=role, memory=memory, **{**FULL, **changes})


MALFORMED: list[tuple[Sequence[int], int, str]] = [
    ([layer_word(xi=5)], 0, "the tile needs 4 x 6"),
    ([layer_word(yi=5)], 0, "the tile needs 4 x 6"),
    ([layer_word(Sh=2)], 0, "the tile needs 5 x 6"),
    ([layer_word(Zs=2)], 0, "Zs = 2 for 16"),
    ([layer_word(Co=17)], 0, "Zs = 1 for 17"),
    ([layer_word(Sh=0, yi=3)], 0, "a stride of 0"),
    ([point_word(Sw=0, xi=1)], 0, "a stride of 0"),
    ([layer_word(y=9, yi=11)], 0, "66 entries of 64"),
    ([point_word(opcode=RELU, Ho=9, Hi=9, y=9, x=8, yi=9, xi=8)], 0, "72 entries of 64"),
    ([point_word(Co=256, Zs=16, y=2, x=4)], 0, "128 psums of 64"),
    ([layer_word(opcode=DWCONV, Ci=15)], 0, "Ci != Co"),
    ([layer_word(opcode=MAXPOOL, Co=15)], 0, "Ci != Co"),
    ([layer_word(opcode=RELU)], 0, "window"),
    ([layer_word(opcode=ADD)], 0, "window"),
    ([point_word(opcode=RELU, Ho=3)], 0, "window"),
    ([point_word(opcode=MUL, Sw=2, xi=7)], 0, "window"),
    ([0xA0], 0, "not an instruction"),
    ([layer_word(), 0x03], 1, "not an instruction"),
    ([layer_word(), 0xC5], 1, "not an instruction"),
    ([layer_word(opcode=CONV | FUSED)], 0, "ends within a chain"),
    ([layer_word(opcode=CONV | FUSED), HALT], 1, "ends within a chain"),
    ([layer_word(), operand_word(SRC)], 1, "ends within a chain"),
    ([layer_word(), KEEP], 1, "ends within a chain"),
    ([layer_word(opcode=CONV | FUSED), point_word()], 1, "cannot continue on a fused result"),
    ([layer_word(opcode=CONV | FUSED), point_word(opcode=MAXPOOL)], 1, "cannot continue on a fused result"),
    ([layer_word(opcode=CONV | FUSED), layer_word(opcode=BN)], 1, "window"),
    ([layer_word(opcode=CONV | FUSED), point_word(opcode=RELU, Ho=3, Hi=3)], 1, "another output size"),
    ([layer_word(opcode=CONV | FUSED), point_word(opcode=RELU, Co=15, Ci=15)], 1, "another output size"),
    ([layer_word(opcode=CONV | FUSED), point_word(opcode=RELU, y=1, yi=1)], 1, "another tile"),
    ([operand_word(OPB), layer_word()], 1, "`opb` before a word without"),
    ([operand_word(STO), layer_word()], 1, "`sto` before a word without"),
    ([operand_word(DST, 1), layer_word(opcode=CONV | FUSED), point_word(opcode=RELU)], 1, "`dst` before a word"),
    ([layer_word(opcode=CONV | FUSED), operand_word(SRC), point_word(opcode=RELU)], 2, "`src` before a word"),
    ([operand_word(SRC), operand_word(SRC), layer_word()], 1, "a second extension word"),
    ([KEEP, KEEP, layer_word(opcode=CONV | FUSED), point_word()], 1, "a second extension word"),
    ([KEEP, layer_word()], 1, "psums are kept or taken from chain to chain by a word of several tiles"),
    ([KEEP, ONE_TILE, TAKE, layer_word()], 3, "by a word of several tiles"),
    ([KEEP, point_word(opcode=DWCONV, Ci=17, Co=17, Zs=2, y=4, yi=4)], 1, "by a word of several tiles"),
    ([TAKE, ONE_TILE], 1, "the chain before kept none"),
    ([KEEP, ONE_TILE, ONE_TILE, TAKE, ONE_TILE], 4, "the chain before kept none"),
    ([KEEP, ONE_TILE, TAKE, point_word(y=4, yi=4, Co=15)], 3, "the psums of a word with another ofmap"),
    ([KEEP, ONE_TILE, TAKE, point_word(y=4, yi=4, opcode=DWCONV)], 3, "the psums of a word with another ofmap"),
    ([KEEP, ONE_TILE, TAKE, point_word(y=4, yi=4, opcode=RELU)], 3, "does not accumulate"),
    ([KEEP, point_word(y=4, yi=4, opcode=CONV | FUSED), TAKE, ONE_TILE], 3, "does not begin a chain"),
    ([operand_word(DST), KEEP, ONE_TILE], 2, "`dst` before a word"),
    ([KEEP, layer_word(opcode=CONV | FUSED | STORED), layer_word()], 1, "psums are kept"),
    ([KEEP, layer_word(opcode=CONV | FUSED), point_word(opcode=RELU)], 2, "does not accumulate"),
    ([KEEP, point_word(opcode=ADD | FUSED), layer_word()], 1, "does not accumulate"),
    ([KEEP, layer_word(opcode=MAXPOOL | FUSED), layer_word()], 1, "does not accumulate"),
    ([layer_word(Hi=256, Wi=256)], 0, "words 0..65535 of the fmap DTCM"),
    ([layer_word(Ho=256, Wo=256)], 0, "of the fmap DTCM"),
    ([layer_word(Ho=256, Wo=256, Co=256, Zs=16, y=1, x=1, yi=3, xi=3)], 0, "of the fmap DTCM"),
    ([operand_word(SRC, base=WORDS), layer_word()], 1, "of the fmap DTCM"),
    ([operand_word(SRC, row=(1 << 24) - 1), layer_word()], 1, "of the fmap DTCM"),
    ([operand_word(SRC, memory=1, base=WORDS - 15), layer_word()], 1, "of the skip DTCM"),
    ([operand_word(DST, base=WORDS - 15), layer_word()], 1, "of the fmap DTCM"),
    ([operand_word(SRC, memory=2), layer_word()], 1, "memory 2"),
    ([operand_word(DST, memory=255), layer_word()], 1, "memory 255"),
    ([operand_word(STO, memory=2), layer_word(opcode=CONV | STORED)], 1, "memory 2"),
    ([operand_word(OPB, base=WORDS), point_word(opcode=ADD)], 1, "of the fmap DTCM"),
    ([operand_word(STO, base=WORDS), layer_word(opcode=CONV | STORED)], 1, "of the fmap DTCM"),
    ([operand_word(DST), layer_word()], 1, "over another map"),
    ([operand_word(STO, base=400), layer_word(opcode=CONV | STORED)], 1, "and its copy go to the fmap DTCM"),
    ([operand_word(DST, base=15), layer_word()], 1, "over another map"),
    ([operand_word(DST, pixel=0, base=100), layer_word()], 1, "several pixels"),
    ([operand_word(DST, row=1, base=100), layer_word()], 1, "several pixels"),
    ([operand_word(STO, base=WORDS - 16), layer_word(opcode=CONV | STORED)], 1, "over another map"),
    ([operand_word(DST, base=1), point_word(opcode=RELU)], 1, "over another map"),
    ([operand_word(OPB, base=WORDS - 17), point_word(opcode=ADD)], 1, "over another map"),
    ([layer_word(Hi=22, Ho=22, Co=112, Zs=7, y=1, x=4, yi=3)], 0, "over another map"),
    ([word(CONTROL, opcode=CTL, set=1, weights=2999), layer_word()], 1, "weight words 2999"),
    ([word(CONTROL, opcode=CTL, set=1, weights=(1 << 24) - 1), layer_word()], 1, "weight words"),
    ([layer_word(Ci=256, Wi=2, Hi=2, Ho=2, Wo=2, x=2, xi=4, Co=32, Zs=2)], 0, "weight words 0..4617"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "number", "reason"), MALFORMED)
def test_a_word_that_no_machine_executes_is_refused_by_number(
    words: Sequence[int], number: int, reason: str
) -> None:
    writer = Writer(np.random.default_rng(0), words=list(words), stream=[np.zeros((2500, 16), np.int8)])
    zero = np.zeros((1, WORDS, 16), np.int8)
    with pytest.raises(NpucError) as caught:
        run_both(writer, zero, zero)
    (problem,) = caught.value.problems
    assert f"instruction {number}" in problem.reason
    assert reason in problem.reason


@pytest.mark.parametrize("op", [ADD, MUL, CONV])
def test_a_bias_where_the_adder_has_another_input_is_refused(op: int) -> None:
    writer = Writer(np.random.default_rng(0))
    if op == CONV:
        writer.words.append(KEEP)
        writer.emit(PLAIN | {"opcode": CONV | FUSED})
    writer.emit(POINT | {"opcode": op})
    writer.stream[-2][0, 7] = 1  # least byte of the bias of channel 7
    zero = np.zeros((1, WORDS, 16), np.int8)
    with pytest.raises(ArtefactError, match="a bias"):
        run_both(writer, zero, zero)


def test_a_second_operand_may_be_replaced_where_it_lies() -> None:
    """The sum of a residual block becomes the next kept map: its pixel is read before it is written."""
    random = np.random.default_rng(3)
    writer = Writer(random)
    writer.emit(POINT | {"opcode": ADD}, STORED)
    compare(writer, *noise(random))


@pytest.mark.parametrize("op", [RELU, BN, MUL])
def test_an_elementwise_word_may_replace_its_map(op: int) -> None:
    """Each pixel is read once, before the result's is written."""
    random = np.random.default_rng(4)
    writer = Writer(random)
    for role in (SRC, DST):
        writer.operand(role, 0, {"base": 7, "row": 4, "pixel": 1, "group": 1})
    writer.emit(POINT | {"opcode": op})
    compare(writer, *noise(random))


@pytest.mark.parametrize("replaced", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_a_sum_of_kept_words_may_replace_either_of_its_maps(seed: int, replaced: int) -> None:
    """Three groups of channels, several tiles: a pixel of both maps is read before that of the sum is written."""
    random = np.random.default_rng((seed, 5))
    writer = Writer(random)
    last = writer.head(DWCONV, (5, 4, 36)) | {
        "Hk": 1,
        "Wk": 1,
        "Sh": 1,
        "Sw": 1,
        "Ph": 0,
        "Pw": 0,
        "Dh": 0,
        "Dw": 0,
    }
    last |= {"Ho": 5, "Wo": 4, "y": 2, "x": 3, "yi": 2, "xi": 3}
    places = [{"base": base, "row": 12, "pixel": 3, "group": 1} for base in (2, 70)]
    writer.operand(SRC, 1, places[0])
    writer.words.append(word(CONTROL, opcode=CTL, keep=1))
    writer.emit(last, FUSED)
    for role, place in ((SRC, places[1]), (DST, places[replaced])):
        writer.operand(role, 1, place)
    writer.emit(last, biased=False)
    compare(writer, *noise(random))


@pytest.mark.parametrize("seed", range(80))
def test_a_program_with_a_flipped_bit_runs_as_its_words_say_or_is_refused(seed: int) -> None:
    random = np.random.default_rng((seed, 7))
    writer = Writer(random)
    layer = writer.head(int(random.choice(HEADS)), (4, 4, 20), 20)
    writer.emit(layer, FUSED)
    writer.operand(OPB, 1, {"base": 3, "row": 40, "pixel": 5, "group": 1})
    writer.emit(writer.pointwise(layer) | {"opcode": ADD})
    at = writer.number(0, len(writer.words) - 1)
    writer.words[at] ^= 1 << writer.number(0, 127)
    fmap, skip = noise(random, samples=1)
    try:
        compare(writer, fmap, skip)
    except NpucError as error:
        assert error.problems[0].code in ("E503", "E301")  # noqa: PT017
