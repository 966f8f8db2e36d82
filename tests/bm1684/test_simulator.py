"""npuc's model of the OKKernel interface: what it computes, what it refuses, and that it says why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.targets.bm1684.machine.parameters import Machine
from tests.bm1684 import chips
from tests.bm1684.kernels import need_compiler, source

MACHINE = Machine()
CONV = (
    "okk_bdc_conv2d({out}, {inp}, {weight}, {bias}, D4({shape}), {OC}, {kh}, {kw}, NULL, {kernel}, true, false,"
    " {pad}, {stride}, {dilation});"
)
GOOD_CONV = {
    "out": "0", "inp": "65536", "weight": "131072", "bias": "196608", "shape": "1, 4, 8, 8", "OC": "16", "kh": "3",
    "kw": "3", "kernel": "D4(9, 9, 3, 1)", "pad": "PAD(1, 1, 1, 1)", "stride": "D2(1, 1)", "dilation": "D2(1, 1)",
}  # fmt: skip
FILL = "SET(65536, 1, 4, 64, 64); SET(131072, 2, 64, 30, 30); SET(196608, 1, 64, 8, 8);"


def _conv(**changed: str) -> str:
    return FILL + CONV.format(**{**GOOD_CONV, **changed})


# name: (statements, what the refusal must say)
REFUSED = {
    "no_layout": (_conv(out="4"), "okk_bdc_conv2d (call 4): the address of output, 0x4, is not divisible by 128"),
    "odd_input": (_conv(inp="65540"), "the address of input"),
    "odd_weight": (_conv(weight="131076"), "the address of weight, 0x20004, is not divisible by 8"),
    "odd_bias": (_conv(bias="196610"), "the address of bias"),
    "other_npu": (_conv(out="NPU(1)"), "output starts at NPU 1, weight at NPU 0"),
    "pad": (_conv(pad="PAD(16, 1, 1, 1)"), "the padding above is 16, outside 0..15"),
    "stride": (_conv(stride="D2(1, 16)"), "the stride in w is 16, outside 1..15"),
    "dilation": (_conv(dilation="D2(17, 1)"), "the dilation in h is 17, outside 1..16"),
    "tall": (_conv(shape="1, 4, 2047, 1", kw="1"), "the padded height is 2049, outside 1..2047"),
    "channels": (_conv(OC="4096"), "the number of output channels is 4096, outside 1..4095"),
    "no_kernel_stride": (_conv(kernel="NULL"), "kernel_stride is NULL"),
    "in_its_input": (_conv(out="65536"), "input shares words with the output"),
    "unwritten": (
        "okk_bdc_relu(0, 0, D4(1, 1, 1, 1), NULL, NULL);",
        "okk_bdc_relu (call 1): src is read at byte 0 of NPU 0, which nothing has written",
    ),
    "past_the_end": (
        "okk_gdma_32bit_cpy_S2L(524288 - 128, SYSTEM, D4(1, 1, 1, 33), NULL, NULL);",
        "dst ends at byte 524292 of 524288",
    ),
    "behind_the_last_npu": ("SET(NPU(64), 1, 1, 1, 1);", "behind the last NPU"),
    "outside_system": (
        "okk_gdma_32bit_cpy_S2L(0, SYSTEM + 4, D4(1, 64, 1, 16), NULL, NULL);",
        "src, 0x100000004 and 4096 bytes on, is outside system memory",
    ),
    "w_stride": (
        "okk_gdma_32bit_cpy_S2L(0, SYSTEM, D4(1, 1, 2, 2), NULL, D4(8, 8, 4, 2));",
        "okk_gdma_32bit_cpy_S2L (call 1): the W stride is 2, outside 1..1",
    ),
    "matrix_rows": (
        "okk_gdma_32bit_matrix_S2L(0, SYSTEM, 65536, 1, 1, 1);",
        "the number of rows is 65536, outside 1..65535",
    ),
    "tall_relu": ("SET(0, 1, 1, 2048, 1); okk_bdc_relu(0, 0, D4(1, 1, 2048, 1), NULL, NULL);", "h is 2048"),
    "apart": (
        "SET(0, 1, 65, 1, 1); okk_bdc_relu(NPU(1), 0, D4(1, 1, 1, 1), NULL, NULL);",
        "dst starts at NPU 1, src at NPU 0",
    ),
    "large_exp": (
        "okk_gdma_32bit_set_C_local(0, (x32){.fp32 = 100}, D4(1, 1, 1, 1), NULL);"
        "okk_bdc_exp(0, 0, 4096, D4(1, 1, 1, 1));",
        "an argument is 100: the chip computes -128..88",
    ),
    "work_in_place": ("SET(0, 1, 1, 1, 1); okk_bdc_exp(0, 0, 0, D4(1, 1, 1, 1));", "work shares words"),
    "written_while_read": (
        "SET(0, 1, 64, 4, 4); okk_parallel_start(); okk_bdc_relu(4096, 0, D4(1, 64, 4, 4), NULL, NULL);"
        "SET(0, 1, 2, 4, 4); okk_parallel_end();",
        "okk_gdma_32bit_set_C_local (call 4): dst is written in NPU 0 while BDC reads it in the same parallel",
    ),
    "read_while_written": (
        "SET(0, 1, 64, 4, 4); okk_parallel_start(); SET(0, 1, 2, 4, 4);"
        "okk_bdc_relu(4096, 0, D4(1, 64, 4, 4), NULL, NULL); okk_parallel_end();",
        "src is read in NPU 0 while GDMA writes it",
    ),
    "stored_while_written": (
        "SET(0, 1, 64, 4, 4); okk_parallel_start(); okk_bdc_relu(0, 0, D4(1, 64, 4, 4), NULL, NULL);"
        "okk_gdma_32bit_cpy_L2S(SYSTEM, 0, D4(1, 1, 4, 4), NULL, NULL); okk_parallel_end();",
        "okk_gdma_32bit_cpy_L2S (call 4): src is read in NPU 0 while BDC writes it",
    ),
    "region_in_region": ("okk_parallel_start(); okk_parallel_start();", "the region before has not ended"),
    "no_region": ("okk_parallel_end();", "no region has started"),
    "open_region": ("okk_parallel_start();", "ends inside a parallel region"),
}  # fmt: skip

ACCEPTED = {
    "convolution": _conv(),
    "regions_one_after_the_other": """
        SET(0, 1, 64, 4, 4); okk_parallel_start(); okk_bdc_relu(4096, 0, D4(1, 64, 4, 4), NULL, NULL);
        okk_parallel_end(); okk_parallel_start(); SET(0, 1, 64, 4, 4); okk_parallel_end();""",
    "apart_in_a_region": """
        SET(0, 1, 64, 4, 4); okk_parallel_start(); okk_bdc_relu(4096, 0, D4(1, 64, 4, 4), NULL, NULL);
        SET(8192, 1, 2, 4, 4); okk_gdma_32bit_cpy_L2S(SYSTEM, 0, D4(1, 1, 4, 4), NULL, NULL);
        okk_parallel_end();""",
    "between_the_rows": """
        SET(0, 1, 1, 4, 4); okk_parallel_start();
        okk_bdc_relu(0, 0, D4(1, 1, 2, 4), D4(16, 16, 8, 1), D4(16, 16, 8, 1));
        okk_gdma_32bit_set_C_local(16, (x32){.fp32 = 1}, D4(1, 1, 2, 4), D4(16, 16, 8, 1));
        okk_parallel_end();""",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_compiler()
    bodies = {name: statements for name, (statements, _) in REFUSED.items()}
    return chips.compiled(source({**bodies, **ACCEPTED}), tmp_path_factory.mktemp("program"))


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_that_the_machine_does_not_allow_is_refused_by_name(program: Path, name: str) -> None:
    with pytest.raises(ArtefactError) as caught:
        chips.run(program, name, b"", np.zeros(4096, np.uint8), MACHINE)
    problem = caught.value.problems[0]
    assert problem.code == "E503"
    assert REFUSED[name][1] in problem.reason


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_machine_allows_runs(program: Path, name: str) -> None:
    assert chips.run(program, name, b"", np.zeros(4096, np.uint8), MACHINE).calls


def test_a_smaller_machine_has_less_memory(program: Path) -> None:
    small = Machine(local_bytes=262144)
    with pytest.raises(ArtefactError, match="of 262144 of an NPU"):
        chips.run(program, "past_the_end", b"", np.zeros(4096, np.uint8), small)


def test_an_unknown_kernel_is_named(program: Path) -> None:
    with pytest.raises(ArtefactError, match="no kernel absent is registered"):
        chips.run(program, "absent", b"", np.zeros(64, np.uint8), MACHINE)


def test_a_source_that_does_not_compile_is_reported_with_the_compilers_words() -> None:
    need_compiler()
    with pytest.raises(ArtefactError, match=r"E507.*refuses a source: k\.c:1:1"):
        chips.simulate({"k.c": b"nonsense;"}, "k", b"", np.zeros(64, np.uint8), MACHINE)


def test_without_a_compiler_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ArtefactError, match="no C compiler") as caught:
        chips.simulate(source({"k": ""}), "k", b"", np.zeros(64, np.uint8), MACHINE)
    assert "install gcc or clang" in str(caught.value)
