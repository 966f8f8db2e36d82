"""Random OKKernel calls on random tensors, as the statements of a kernel that stores every result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np

from npuc.ir import Array
from npuc.targets.bm1684.machine import local_memory as okk
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div
from npuc.targets.bm1684.machine.parameters import Machine

MACHINE = Machine()
BANK = MACHINE.bank_bytes


@dataclass
class Case:
    """Statements, the values that they load from system memory, and where each result of theirs is stored."""

    random: Random
    start: int
    statements: list[str] = field(default_factory=list[str])
    data: list[Array] = field(default_factory=list[Array])
    results: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Offset and bytes in system memory."""

    @property
    def end(self) -> int:
        """The first free byte of system memory."""
        return self.start + sum(each.nbytes for each in self.data)

    def place(self, values: Array) -> int:
        """The offset in system memory that values now have."""
        at = self.end
        self.data.append(values.reshape(-1).view(np.uint8))
        return at

    def numbers(self, count: int, least: float = -2.0, most: float = 2.0) -> Array:
        """Random fp32."""
        generator = np.random.default_rng(self.random.randrange(1 << 30))
        return generator.uniform(least, most, count).astype(np.float32)

    def load(
        self, address: int, shape: Dim4, stride: Dim4 | None = None, least: float = -2.0, most: float = 2.0
    ) -> None:
        """A tensor of random numbers into local memory; stride None: the aligned layout."""
        at = self.place(self.numbers(int(np.prod(shape)), least, most))
        self.say(f"okk_gdma_32bit_cpy_S2L({address}u, SYSTEM + {at}, {dim4(shape)}, {dim4(stride)}, NULL);")

    def store(self, address: int, shape: Dim4, stride: Dim4 | None = None) -> None:
        """A result from local memory."""
        size = 4 * int(np.prod(shape))
        at = self.place(np.zeros(size // 4, np.float32))
        self.results.append((at, size))
        self.say(f"okk_gdma_32bit_cpy_L2S(SYSTEM + {at}, {address}u, {dim4(shape)}, NULL, {dim4(stride)});")

    def say(self, statement: str) -> None:
        """One more statement."""
        self.statements.append(statement)


def dim4(values: Dim4 | None) -> str:
    """A shape or strides in C."""
    return f"D4({', '.join(map(str, values))})" if values else "NULL"


def truth(value: bool) -> str:
    return "true" if value else "false"


def some_shape(random: Random) -> Dim4:
    return Dim4(random.randint(1, 3), random.randint(1, 140), random.randint(1, 9), random.randint(1, 20))


def compact(shape: Dim4, npu: int) -> Dim4:
    return okk.okk_compact_stride(npu, shape, MACHINE)


def window(random: Random, dilated: bool) -> tuple[Dim4, str, str, str, tuple[int, int]]:
    """Kernel and input extents, padding, stride and dilation in C, output extents."""
    kh, kw, sh, sw = (random.randint(1, 4) for _ in range(4))
    dh, dw = (random.randint(1, 2), random.randint(1, 2)) if dilated else (1, 1)
    H, W = (random.randint((k - 1) * d + 1, 14) for k, d in ((kh, dh), (kw, dw)))
    top, bottom = (random.randint(0, min(2, kh - 1)) for _ in range(2))
    left, right = (random.randint(0, min(2, kw - 1)) for _ in range(2))
    out = ((H + top + bottom - (kh - 1) * dh - 1) // sh + 1, (W + left + right - (kw - 1) * dw - 1) // sw + 1)
    return Dim4(kh, kw, H, W), f"PAD({top}, {bottom}, {left}, {right})", f"D2({sh}, {sw})", f"D2({dh}, {dw})", out


def convolution(case: Case) -> None:
    random = case.random
    npu, source = random.choice([0, 0, 1, 63]), random.choice([0, 0, 5])
    IC, OC = random.choice([1, 2, 3, 4, 5, 16, 33]), random.randint(1, 140)
    (kh, kw, H, W), pad, stride, dilation, (OH, OW) = window(random, dilated=True)
    N = random.randint(1, 2)
    bias, add, dense = random.random() < 0.5, random.random() < 0.3, random.random() < 0.3
    out, weight, offset = (npu * MACHINE.local_bytes + bank * BANK for bank in (0, 4, 7))
    image = source * MACHINE.local_bytes + 2 * BANK
    shape, result = Dim4(N, IC, H, W), Dim4(N, OC, OH, OW)
    strides = compact(shape, source) if dense else None
    J, pairs = ceil_div(IC, 2), compact(Dim4(1, OC, kh, kw), npu)
    case.load(image, shape, strides)
    case.load(weight, Dim4(J, OC, kh, 2 * kw), compact(Dim4(J, OC, kh, 2 * kw), npu))
    case.load(offset, Dim4(1, OC, 1, 1), compact(Dim4(1, OC, 1, 1), npu))
    case.load(out, result)
    case.say(
        f"okk_bdc_conv2d({out}u, {image}u, {weight}u, {offset}u, {dim4(shape)}, {OC}, {kh}, {kw}, {dim4(strides)},"
        f" {dim4(pairs)}, {truth(bias)}, {truth(add)}, {pad}, {stride}, {dilation});"
    )
    case.store(out, result)


def depthwise(case: Case) -> None:
    random = case.random
    base = random.choice([0, 1, 63]) * MACHINE.local_bytes
    npu = base // MACHINE.local_bytes
    N, C = random.randint(1, 2), random.randint(1, 140)
    (kh, kw, H, W), pad, stride, dilation, (OH, OW) = window(random, dilated=True)
    bias, shape, result = random.random() < 0.5, Dim4(N, C, H, W), Dim4(N, C, OH, OW)
    case.load(base, shape)
    case.load(base + 2 * BANK, Dim4(1, C, kh, kw), compact(Dim4(1, C, kh, kw), npu))
    case.load(base + 3 * BANK, Dim4(1, C, 1, 1), compact(Dim4(1, C, 1, 1), npu))
    case.say(
        f"okk_bdc_depthwise2d({base + 4 * BANK}u, {base}u, {base + 2 * BANK}u, {base + 3 * BANK}u, {dim4(shape)},"
        f" {kh}, {kw}, {truth(bias)}, {pad}, {stride}, {dilation});"
    )
    case.store(base + 4 * BANK, result)


def pool(case: Case, kind: str) -> None:
    random = case.random
    base = random.choice([0, 1, 63]) * MACHINE.local_bytes
    (kh, kw, H, W), pad, stride, _, (OH, OW) = window(random, dilated=False)
    shape = Dim4(random.randint(1, 2), random.randint(1, 140), H, W)
    case.load(base, shape)
    case.say(f"okk_bdc_{kind}_pool2d({base + 4 * BANK}u, {base}u, {dim4(shape)}, {kh}, {kw}, {pad}, {stride});")
    case.store(base + 4 * BANK, Dim4(shape.n, shape.c, OH, OW))


def matmul(case: Case) -> None:
    random = case.random
    M, K, N = random.randint(1, 9), random.randint(1, 60), random.randint(1, 400)
    left_w, right_w = random.randint(1, K), random.randint(ceil_div(N, 200), N)
    channels = (ceil_div(N, right_w), ceil_div(K, left_w))
    npu, source = (
        random.choice([at for at in (0, 1, 28, 63) if _wraps_as_from_npu_0(at, each)]) for each in channels
    )
    bias, add = random.random() < 0.5, random.random() < 0.3
    out, right, offset = (npu * MACHINE.local_bytes + bank * BANK for bank in (0, 2, 6))
    left = source * MACHINE.local_bytes + 7 * BANK
    matrices = ((left, M, K, left_w), (right, K, N, right_w), (offset, 1, N, right_w), (out, M, N, right_w))
    for address, rows, cols, W in matrices:
        at = case.place(case.numbers(rows * cols))
        case.say(f"okk_gdma_32bit_matrix_S2L({address}u, SYSTEM + {at}, {rows}, {cols}, {W}, {cols});")
    case.say(
        f"okk_bdc_matmul({out}u, {left}u, {right}u, {offset}u, {M}, {K}, {N}, {left_w}, {right_w}, {truth(bias)},"
        f" {truth(add)});"
    )
    at = case.place(np.zeros(M * N, np.float32))
    case.results.append((at, 4 * M * N))
    case.say(f"okk_gdma_32bit_matrix_L2S(SYSTEM + {at}, {out}u, {M}, {N}, {right_w}, {N});")


def _wraps_as_from_npu_0(npu: int, channels: int) -> bool:
    """Where the vendor's moves of matrices follow the layout."""
    return okk.okk_channle_num_per_npu(npu, channels, MACHINE) == ceil_div(channels, MACHINE.npus)


def elementwise(
    case: Case, call: str, sources: int, constant: str = "", least: float = -2.0, most: float = 2.0
) -> None:
    """A call with strides, given or NULL; the last operand may be repeated along some axes."""
    random = case.random
    base = random.choice([0, 1, 63]) * MACHINE.local_bytes
    shape = some_shape(random)
    strided = random.random() < 0.5
    given = [compact(shape, base // MACHINE.local_bytes) if strided else None for _ in range(sources + 1)]
    for number in range(sources):
        case.load(base + (2 + 2 * number) * BANK, shape, given[number + 1], least, most)
    if sources == 2 and random.random() < 0.3:
        given[2] = Dim4(0, 1, 0, 0)
    case.load(base, shape, given[0])
    addresses = [f"{base + 2 * number * BANK}u" for number in range(sources + 1)]
    strides = [dim4(each) for each in given]
    case.say(
        f"okk_bdc_{call}({', '.join([*addresses, *([constant] if constant else []), dim4(shape), *strides])});"
    )
    case.store(base, shape, given[0])


def channels(case: Case, call: str) -> None:
    """bias, scale or scale_bias."""
    random = case.random
    base, shape = random.choice([0, 1, 63]) * MACHINE.local_bytes, some_shape(random)
    npu, each = base // MACHINE.local_bytes, Dim4(1, shape.c, 1, 1)
    banks = (4, 5) if call == "scale_bias" else (4,)
    case.load(base + 2 * BANK, shape)
    for bank in banks:
        case.load(base + bank * BANK, each, compact(each, npu))
    operands = ", ".join(f"{base + bank * BANK}u" for bank in (0, 2, *banks))
    case.say(f"okk_bdc_{call}({operands}, {dim4(shape)}, NULL, NULL);")
    case.store(base, shape)


def function(case: Case, call: str, working: bool, least: float, most: float, series: int = 0) -> None:
    """A function of aligned tensors."""
    base, shape = case.random.choice([0, 1, 63]) * MACHINE.local_bytes, some_shape(case.random)
    case.load(base + 2 * BANK, shape, None, least, most)
    work = f"{base + 4 * BANK}u, " if working else ""
    terms = f", {series}" if series else ""
    case.say(f"okk_bdc_{call}({base}u, {base + 2 * BANK}u, {work}{dim4(shape)}{terms});")
    case.store(base, shape)


def select(case: Case, call: str) -> None:
    """A selection with tensors and constants."""
    random = case.random
    base, shape = random.choice([0, 1, 63]) * MACHINE.local_bytes, some_shape(random)
    operands: list[str] = []
    for number, kind in enumerate(("fp32", "fp32", "x32", "x32")):
        if number == 0 or random.random() < 0.5 or (number == 1 and call == "equal_select"):
            address = base + (1 + number) * BANK
            case.load(address, shape)
            operands.append(f"&({kind}_or_addr_t){{true, {{.addr = {address}u}}}}")
        else:
            value = "0.25f" if kind == "fp32" else "{.fp32 = 0.25f}"
            operands.append(f"&({kind}_or_addr_t){{false, {{.val = {value}}}}}")
    case.say(f"okk_bdc_{call}({base}u, {', '.join(operands)}, {dim4(shape)});")
    case.store(base, shape)


def moves(case: Case, bits: int) -> None:
    """A strided tensor to local memory, to another place there, and back with gaps."""
    random, item = case.random, bits // 8
    shape = Dim4(random.randint(1, 3), random.randint(1, 140), random.randint(1, 9), random.randint(1, 9))
    npu, other = random.choice([0, 1, 63]), random.choice([0, 3, 62])
    rows = shape.w + random.randint(0, 3)
    gaps = Dim4(shape.c * shape.h * rows, shape.h * rows, rows, 1)
    size = shape.n * gaps.n * item
    at = case.place(case.numbers(ceil_div(size, 4)))
    first, second = npu * MACHINE.local_bytes, other * MACHINE.local_bytes + 4 * BANK
    dense = dim4(compact(shape, npu)) if random.random() < 0.5 else "NULL"
    pre = f"okk_gdma_{bits}bit_cpy_"
    case.say(f"{pre}S2L({first}u, SYSTEM + {at}, {dim4(shape)}, {dense}, {dim4(gaps)});")
    case.say(f"{pre}L2L({second}u, {first}u, {dim4(shape)}, NULL, {dense});")
    back = case.place(case.numbers(ceil_div(size, 4)))
    again = case.place(case.numbers(ceil_div(size, 4)))
    case.say(f"{pre}L2S(SYSTEM + {back}, {second}u, {dim4(shape)}, {dim4(gaps)}, NULL);")
    case.say(f"{pre}S2S(SYSTEM + {again}, SYSTEM + {back}, {dim4(shape)}, NULL, {dim4(gaps)});")
    case.results += [(back, 4 * ceil_div(size, 4)), (again, 4 * ceil_div(size, 4))]


def constants(case: Case, bits: int) -> None:
    """Constants to both memories."""
    shape = some_shape(case.random)
    value = f"(x{bits}){{.u{bits} = 0x{0x12345678 >> (32 - bits):x}}}"
    case.say(
        f"okk_gdma_{bits}bit_set_C_local(0, {value}, {dim4(shape)}, {dim4(ALIGNED[bits](0, shape, MACHINE))});"
    )
    for place in range(2):
        size = ceil_div(int(np.prod(shape)) * bits // 8, 4)
        at = case.place(np.zeros(size, np.float32))
        case.results.append((at, 4 * size))
        call = ("cpy_L2S", "set_C_system")[place]
        operands = ("0, {}, NULL, NULL", "{value}, {}, NULL")[place].format(dim4(shape), value=value)
        case.say(f"okk_gdma_{bits}bit_{call}(SYSTEM + {at}, {operands});")


def transpose(case: Case) -> None:
    """Elements one at a time: W = 1, any strides."""
    random = case.random
    shape = Dim4(random.randint(1, 2), random.randint(1, 70), random.randint(1, 30), 1)
    at = case.place(case.numbers(int(np.prod(shape))))
    swapped = Dim4(shape.c * shape.h, 1, shape.c, 1)
    case.say(f"okk_gdma_32bit_cpy_S2L(0, SYSTEM + {at}, {dim4(shape)}, NULL, {dim4(swapped)});")
    case.store(0, shape)


ALIGNED = {
    32: okk.okk_128_byte_aligned_stride_for_32bit,
    16: okk.okk_128_byte_aligned_stride_for_16bit,
    8: okk.okk_128_byte_aligned_stride_for_8bit,
}
UNARY = ("32bit_cpy", "relu", "neg")
BINARY = ("add", "sub", "mul", "mac", "max", "min")
CONSTANT = ("add_C", "sub_C", "C_sub", "mul_C", "mac_C", "max_C", "min_C")
SHIFTS = ("32bit_arithmetic_shift_C", "32bit_logical_shift_C")
VALUE = "(x32){.fp32 = 1.5f}"

KINDS: dict[str, Callable[[Case], None]] = {
    "conv2d": convolution,
    "depthwise2d": depthwise,
    "max_pool2d": lambda case: pool(case, "max"),
    "avg_pool2d": lambda case: pool(case, "avg"),
    "matmul": matmul,
    **{call: lambda case, call=call: elementwise(case, call, 1) for call in UNARY},
    **{call: lambda case, call=call: elementwise(case, call, 2) for call in BINARY},
    **{call: lambda case, call=call: elementwise(case, call, 1, "0.75f") for call in CONSTANT},
    **{
        f"{call} {by}": lambda case, call=call, by=by: elementwise(case, call, 1, str(by))
        for call in SHIFTS
        for by in (3, -4)
    },
    "reciprocal": lambda case: elementwise(case, "reciprocal", 1, "", 0.1, 9),
    "div": lambda case: elementwise(case, "div", 2, "", 0.1, 9),
    "div_C": lambda case: elementwise(case, "div_C", 1, "0.7f"),
    "C_div": lambda case: elementwise(case, "C_div", 1, "0.7f", 0.1, 9),
    "greater_select_value": lambda case: elementwise_select(case, "greater"),
    "equal_select_value": lambda case: elementwise_select(case, "equal"),
    **{
        f"{call}_select_value": lambda case, call=call: elementwise(
            case, f"{call}_select_value", 1, f"0.25f, {VALUE}"
        )
        for call in ("greater_C", "C_greater", "equal_C")
    },
    "greater_select": lambda case: select(case, "greater_select"),
    "equal_select": lambda case: select(case, "equal_select"),
    **{call: lambda case, call=call: channels(case, call) for call in ("bias", "scale", "scale_bias")},
    "exp": lambda case: function(case, "exp", True, -87, 10),
    "sigmoid": lambda case: function(case, "sigmoid", True, -87, 87),
    "tanh": lambda case: function(case, "tanh", True, -80, 80),
    "exp_tunable": lambda case: function(case, "exp_tunable", True, -87, 10, 10),
    "sigmoid_tunable": lambda case: function(case, "sigmoid_tunable", True, -87, 87, 10),
    "tanh_tunable": lambda case: function(case, "tanh_tunable", True, -3, 3, 10),
    "sqrt": lambda case: function(case, "sqrt", False, 0.01, 100),
    "rsqrt": lambda case: function(case, "rsqrt", False, 0.01, 100),
    **{f"moves {bits}": lambda case, bits=bits: moves(case, bits) for bits in (32, 16, 8)},
    **{f"constants {bits}": lambda case, bits=bits: constants(case, bits) for bits in (32, 16, 8)},
    "transpose": transpose,
}


def elementwise_select(case: Case, comparison: str) -> None:
    elementwise(case, f"{comparison}_select_value", 2, VALUE)


def cases(seed: int, count: int) -> tuple[dict[str, list[Case]], Array]:
    """Cases of every kind, one behind the other in system memory, and that memory."""
    random, start = Random(seed), 0
    made: dict[str, list[Case]] = {}
    for kind, fill in KINDS.items():
        for _ in range(count):
            case = Case(random, start)
            fill(case)
            start = case.end
            made.setdefault(kind, []).append(case)
    data = [values for each in made.values() for case in each for values in case.data]
    return made, np.concatenate(data)
