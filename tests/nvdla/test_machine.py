"""The configurations against the table of NVDLA facts, and machine files."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuc.errors import DoesNotFit
from npuc.targets.nvdla.machine.parameters import FULL, LARGE, SMALL, Machine, load


def test_the_configurations_have_the_sizes_of_the_table() -> None:
    assert [each.cbuf_bytes // 1024 for each in (FULL, LARGE, SMALL)] == [512, 512, 128]
    assert [each.macs_per_cycle("int8") for each in (FULL, LARGE, SMALL)] == [2048, 2048, 64]
    assert [FULL.macs_per_cycle(each) for each in ("int16", "fp16")] == [1024, 1024]
    assert [each.atom_bytes for each in (FULL, LARGE, SMALL)] == [32, 32, 8]
    assert [each.precisions for each in (FULL, SMALL)] == [("int8", "int16", "fp16"), ("int8",)]


def test_kernel_groups_are_of_32_16_or_8_kernels() -> None:
    assert [FULL.kernel_group(each) for each in FULL.precisions] == [32, 16, 16]
    assert (LARGE.kernel_group("int8"), SMALL.kernel_group("int8")) == (32, 8)


def test_nv_small_has_neither_an_elementwise_unit_nor_lut_rubik_winograd_and_compression() -> None:
    assert not any((SMALL.elementwise, SMALL.sdp_lut, SMALL.rubik, SMALL.winograd, SMALL.compression))
    assert LARGE.elementwise and LARGE.sdp_lut and not LARGE.rubik and not LARGE.winograd


def test_a_file_overrides_the_values_of_its_target(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text("clock_mhz = 100\ncbuf_banks = 16\n")
    board = load("nvdla-small", str(path))
    assert (board.name, board.clock_mhz, board.cbuf_bytes, board.atom_bytes) == ("board", 100, 65536, 8)


def test_a_machine_survives_its_record_in_the_manifest() -> None:
    assert Machine.of(FULL.as_dict(), "of the artefact") == FULL


@pytest.mark.parametrize(("line", "said"), [
    ("atom_bytes = 12", "atom_bytes = 12"), ("cbuf_bank = 4", "unknown parameter 'cbuf_bank'"),
    ("winograd = 1", "winograd = 1"), ("clock_mhz = 0", "clock_mhz = 0"),
    ('registers = "nv_huge"', "registers = 'nv_huge'"), ("cbuf_banks = 1", "cbuf_banks = 1"),
    ("cbuf_entry_bytes = 4", "cbuf_entry_bytes = 4"), ("int16 = true\natomic_k = 1", "atomic_k = 1"),
    ("clock_mhz", "cannot be read"), ("bytes_per_clock = 0.0", "above 0"), ("bytes_per_clock = nan", "above 0"),
    ('bytes_per_clock = "8"', "float"),
])  # fmt: skip
def test_what_no_nvdla_can_be_is_refused(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(f"{line}\n")
    with pytest.raises(DoesNotFit, match=r"bad\.toml") as caught:
        load("nvdla-small", str(path))
    assert said in str(caught.value)
    assert caught.value.problems[0].code == "E305"


def test_a_file_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(DoesNotFit, match=r"nowhere\.toml"):
        load("nvdla-full", "nowhere.toml")


def test_memory_is_stated_in_bytes_a_clock_and_bounded_by_its_bandwidth(tmp_path: Path) -> None:
    file = tmp_path / "tree.toml"
    for lines, expected in (("bytes_per_clock = 4", 4.0), ("bytes_per_clock = 2.5", 2.5), ("", 8.0)):
        file.write_text(lines)
        assert load("nvdla-small", str(file)).dram_bytes_per_cycle == expected
    file.write_text("dram_mb_per_second = 1000")
    assert load("nvdla-small", str(file)).dram_bytes_per_cycle == 1.0
