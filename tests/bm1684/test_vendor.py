"""Layouts, model and cycles against the vendor's chip model, where its library is at hand (NPUC_OKK_LIBS)."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.bm1684.machine import local_memory
from npuc.targets.bm1684.machine.local_memory import Dim4, empty_memory, pack, pack_matrix
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.simulate import running, simulator
from tests.bm1684 import chips, random_calls
from tests.bm1684.kernels import source, vendor_libraries
from tests.bm1684.random_calls import ALIGNED, dim4
from tests.cli.process import npuc

MACHINE = Machine()
WORDS = 4096
"""Of every NPU, in a dump of local memory."""
DUMP = f"D4(1, 64, 1, {WORDS}), {{}}D4({WORDS}, {WORDS}, {WORDS}, 1)"
EXACT = {
    "max_pool2d", "32bit_cpy", "relu", "neg", "max", "min", "max_C", "min_C", "bias", "scale", "transpose",
    "32bit_arithmetic_shift_C 3", "32bit_arithmetic_shift_C -4", "32bit_logical_shift_C 3",
    "32bit_logical_shift_C -4", "greater_select", "equal_select", "greater_select_value", "equal_select_value",
    "greater_C_select_value", "C_greater_select_value", "equal_C_select_value", "moves 32", "moves 16", "moves 8",
    "constants 32", "constants 16", "constants 8",
}  # fmt: skip
TOLERANCE = 2e-6
"""Of the largest result: fp32 sums in another order, divisions and series of the chip."""


@pytest.fixture(scope="module")
def libraries() -> str:
    return vendor_libraries()


@pytest.mark.parametrize("seed", [11, 12])
def test_random_calls_give_the_vendors_values_and_cycles(libraries: str, seed: int) -> None:
    made, memory = random_calls.cases(seed, 3)
    statements = [each for cases in made.values() for case in cases for each in case.statements]
    sources = source({"k": "\n".join(statements)})
    ours = chips.simulate(sources, "k", b"", memory, MACHINE)
    theirs = chips.vendor_run(sources, "k", b"", memory, libraries)
    off = {
        kind: difference
        for kind, cases in made.items()
        for case in cases
        for at, size in case.results
        if (difference := _difference(kind, ours.memory[at : at + size], theirs.memory[at : at + size]))
    }
    assert not off
    assert abs(ours.cost.cycles - theirs.cycles) <= 0.001 * theirs.cycles


def _difference(kind: str, ours: Array, theirs: Array) -> str:
    """What is wrong with a result, if anything is."""
    if kind in EXACT:
        return "" if (ours == theirs).all() else f"{np.count_nonzero(ours != theirs)} bytes"
    expected = theirs.view(np.float32)
    difference = float(np.abs(ours.view(np.float32) - expected).max() / np.abs(expected).max())
    return "" if difference <= TOLERANCE else f"{difference:.2g} of the largest result"


def _dumped(libraries: str, statements: str, values: Array) -> Array:
    """The first WORDS of every NPU (64, WORDS) uint32 after statements on zeros; values start system memory."""
    memory = np.concatenate([values.reshape(-1).view(np.uint8), np.zeros(-values.nbytes % 4, np.uint8)])
    dump = np.zeros(64 * WORDS * 4, np.uint8)
    body = (
        f"okk_gdma_32bit_set_C_local(0, (x32){{.u32 = 0}}, {DUMP.format('')});{statements}"
        f"okk_gdma_32bit_cpy_L2S(SYSTEM + {memory.size}, 0, {DUMP.format('NULL, ')});"
    )
    run = chips.vendor_run(source({"k": body}), "k", b"", np.concatenate([memory, dump]), libraries)
    return run.memory[memory.size :].view(np.uint32).reshape(64, WORDS)


def _shape(random: Random) -> Dim4:
    return Dim4(random.randint(1, 3), random.randint(1, 200), random.randint(1, 9), random.randint(1, 20))


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("npu", [0, 1, 62, 63])
def test_the_aligned_layout_is_where_the_vendor_puts_it(libraries: str, bits: int, npu: int) -> None:
    shape = _shape(Random(bits + npu))
    dtype = {32: np.uint32, 16: np.uint16, 8: np.uint8}[bits]
    values = np.random.default_rng(npu).integers(1, 255, shape).astype(dtype)
    at = local_memory.address(npu, 128, MACHINE)
    found = _dumped(libraries, f"okk_gdma_{bits}bit_cpy_S2L({at}u, SYSTEM, {dim4(shape)}, NULL, NULL);", values)
    memory = empty_memory(MACHINE)
    pack(memory, at, ALIGNED[bits](npu, shape, MACHINE), values, MACHINE)
    assert (memory.view(np.uint32)[:, :WORDS] == found).all()


@pytest.mark.parametrize(
    ("rows", "cols", "W", "npu"), [(2, 40, 15, 0), (3, 1000, 7, 0), (3, 1000, 16, 1), (1, 90, 1, 62)]
)
def test_the_matrix_layout_is_where_the_vendor_puts_it(
    libraries: str, rows: int, cols: int, W: int, npu: int
) -> None:
    values = np.random.default_rng(cols).standard_normal((rows, cols)).astype(np.float32)
    at = local_memory.address(npu, 0, MACHINE)
    move = f"okk_gdma_32bit_matrix_S2L({at}u, SYSTEM, {rows}, {cols}, {W}, {cols});"
    memory = empty_memory(MACHINE)
    pack_matrix(memory, at, W, values, MACHINE)
    assert (memory.view(np.uint32)[:, :WORDS] == _dumped(libraries, move, values)).all()


HELPERS = {
    "okk_128_byte_aligned_stride_for_32bit": local_memory.okk_128_byte_aligned_stride_for_32bit,
    "okk_128_byte_aligned_stride_for_16bit": local_memory.okk_128_byte_aligned_stride_for_16bit,
    "okk_128_byte_aligned_stride_for_8bit": local_memory.okk_128_byte_aligned_stride_for_8bit,
    "okk_compact_stride": local_memory.okk_compact_stride,
}


def test_the_helpers_give_the_vendors_strides_and_those_of_npucs_model(libraries: str) -> None:
    random = Random(4)
    wanted: list[tuple[int, ...]] = []
    statements = ["dim4 stride;"]
    for name, helper in HELPERS.items():
        for _ in range(10):
            shape, npu = _shape(random), random.randint(0, 63)
            statements.append(f"{name}(&stride, {npu}, {dim4(shape)});")
            statements += _told(("stride.n", "stride.c", "stride.h", "stride.w"), len(wanted))
            wanted.append(helper(npu, shape, MACHINE))
    shape = _shape(random)
    statements += [f"okk_continuous_stride(&stride, {dim4(shape)});"]
    statements += _told(("stride.n", "stride.c", "stride.h", "stride.w"), len(wanted))
    wanted.append(local_memory.okk_continuous_stride(shape))
    counts = ("okk_channle_num_per_npu(63, 66)", "okk_start_npu_index(5 * 524288 + 128)", "okk_npu_num()")
    statements += _told((*counts, "(int)okk_local_mem_size_per_npu()"), len(wanted))
    wanted.append((local_memory.okk_channle_num_per_npu(63, 66, MACHINE), 5, 64, 524_288))
    sources, memory = source({"k": "\n".join(statements)}), np.zeros(16 * len(wanted), np.uint8)
    theirs = chips.vendor_run(sources, "k", b"", memory, libraries).memory.view(np.int32)
    ours = chips.simulate(sources, "k", b"", memory, MACHINE).memory.view(np.int32)
    assert theirs.reshape(-1, 4).tolist() == [list(each) for each in wanted]
    assert (ours == theirs).all()


def _told(values: tuple[str, ...], row: int) -> list[str]:
    """Statements that write integers to system memory."""
    one = "D4(1, 1, 1, 1), NULL"
    return [
        f"okk_gdma_32bit_set_C_system(SYSTEM + {16 * row + 4 * at}, (x32){{.s32 = {value}}}, {one});"
        for at, value in enumerate(values)
    ]


def test_overlapped_engines_cost_what_the_vendor_says(libraries: str) -> None:
    body = """
        SET(0, 1, 64, 56, 56);
        for (unsigned part = 1; part < 4; part++) {
            okk_parallel_start();
            SET(65536 * part, 1, 64, 28, 28);
            for (unsigned again = 0; again < part; again++)
                okk_bdc_exp(65536 * 5, 0, 65536 * 6, D4(1, 64, 8, 8));
            okk_parallel_end();
        }"""
    sources, memory = source({"k": body}), np.zeros(64, np.uint8)
    ours = chips.simulate(sources, "k", b"", memory, MACHINE)
    assert ours.cost.cycles == chips.vendor_run(sources, "k", b"", memory, libraries).cycles
    assert ours.cost.cycles < simulator.total(ours.calls, MACHINE).bdc + ours.cost.gdma


def test_what_the_vendors_model_refuses_is_reported_in_its_words(libraries: str) -> None:
    body = "okk_bdc_max_pool2d(4096, 4, D4(1, 1, 4, 4), 2, 2, NULL, NULL);"
    with pytest.raises(ArtefactError, match=r"vendor's chip model refuses the program: .*ifmap_addr"):
        chips.vendor_run(source({"k": body}), "k", b"", np.zeros(64, np.uint8), libraries)


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(running.VARIABLE, raising=False)
    with pytest.raises(ArtefactError, match="not at hand") as caught:
        running.library()
    assert "NPUC_OKK_LIBS" in str(caught.value)
    with pytest.raises(ArtefactError, match=r"there is no libbackend_bm1684\.so in nowhere"):
        running.library("nowhere")


@pytest.mark.usefixtures("libraries")
def test_the_report_shows_the_vendors_cycles_beside_ours(tmp_path: Path) -> None:
    model = Path(__file__).resolve().parents[2] / "models" / "digits.onnx"
    npuc("compile", model, "--target", "bm1684", "-o", tmp_path / "o").done()
    flags = ("--model", model, "--chip-model", "vendor")
    npuc("report", tmp_path / "o", "-o", tmp_path / "o.html", *flags).done()
    shown = re.search("cycles, vendor.*?<dd>([0-9,]+)</dd>", (tmp_path / "o.html").read_text(encoding="utf-8"))
    ours = npuc("verify", model, tmp_path / "o", "--json").json["cycles"]
    assert shown is not None and abs(int(shown[1].replace(",", "")) - ours) <= 0.05 * ours


def test_the_vendors_cycles_need_the_model(tmp_path: Path) -> None:
    model = Path(__file__).resolve().parents[2] / "models" / "digits.onnx"
    npuc("compile", model, "--target", "bm1684", "-o", tmp_path / "o").done()
    message = npuc("report", tmp_path / "o", "-o", tmp_path / "o.html", "--chip-model", "vendor").usage()
    assert "--model" in message
