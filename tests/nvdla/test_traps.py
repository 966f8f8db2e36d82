"""What the hardware could not do, the model refuses: with the block, what was found and what would be right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.targets.nvdla import model
from npuc.targets.nvdla.machine.parameters import FULL, LARGE, SMALL, Machine
from npuc.targets.nvdla.machine.registers import Command, Poll, Wait, Write, register_map
from tests.nvdla.programs import RESULT, SOURCE, Convolution, Fields, memory, writes

LAYER = Convolution(SMALL, (8, 4, 4), (8, 3, 3))
ENABLE = ("SDP", "CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA")


def refused(machine: Machine, commands: list[Command]) -> str:
    """The error of a program."""
    with pytest.raises(ArtefactError) as caught:
        model.run(machine, commands, memory())
    assert str(caught.value).startswith("error[E503] ")
    return str(caught.value)


@pytest.mark.parametrize("absent", ENABLE)
def test_a_layer_with_a_block_that_is_not_enabled_never_runs(absent: str) -> None:
    text = refused(SMALL, LAYER.commands(enable=tuple(each for each in ENABLE if each != absent)))
    assert "never ran" in text and f"waiting for {absent}" in text and "help: enable every block" in text


def test_waiting_for_a_layer_that_does_not_run_says_what_is_missing() -> None:
    text = refused(SMALL, [*LAYER.commands(enable=ENABLE[:-1]), LAYER.wait()])
    assert "SDP_0 never comes" in text and "waiting for CDMA" in text


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"CDMA.D_DAIN_ADDR_LOW_0": {"DATAIN_ADDR_LOW_0": 0x1000}}, "128 bytes at 0x1000 lie outside memory"),
        ({"CDMA.D_WEIGHT_ADDR_LOW": {"WEIGHT_ADDR_LOW": 0x80FFFF00}}, "CDMA: 576 bytes at 0x80ffff00 lie outside"),
        ({"SDP.D_DST_BASE_ADDR_LOW": {"DST_BASE_ADDR_LOW": 0x830FFFF8}}, "32 bytes at 0x830ffff8 lie outside"),
        ({"SDP.D_DST_BASE_ADDR_HIGH": {"DST_BASE_ADDR_HIGH": 1}}, "SDP: 32 bytes at 0x183000000 lie outside"),
        ({"CDMA.D_DAIN_ADDR_LOW_0": {"DATAIN_ADDR_LOW_0": SOURCE + 4}}, "address 0x80000004 is not aligned"),
        ({"CDMA.D_LINE_STRIDE": {"LINE_STRIDE": 36}}, "line stride 0x24 is not aligned"),
        ({"SDP.D_DST_BASE_ADDR_LOW": {"DST_BASE_ADDR_LOW": RESULT + 1}}, "address 0x83000001 is not aligned"),
        ({f"{each}.D_ENTRY_PER_SLICE": {"ENTRIES": 2} for each in ("CDMA", "CSC")}, "3 entries per slice"),
        ({"CSC.D_ENTRY_PER_SLICE": {"ENTRIES": 7}}, "CSC: ENTRIES = 7"),
        ({f"{each}.D_BANK": {"DATA_BANK": 20, "WEIGHT_BANK": 20} for each in ("CDMA", "CSC")}, "21 data banks"),
        ({"CSC.D_DATAIN_SIZE_EXT_1": {"DATAIN_CHANNEL_EXT": 15}}, "CSC: 16 channels"),
        ({"CACC.D_DATAOUT_SIZE_0": {"DATAOUT_WIDTH": 2, "DATAOUT_HEIGHT": 1}}, "CACC: 3 x 2 outputs"),
        ({"SDP.D_DATA_CUBE_CHANNEL": {"CHANNEL": 15}}, "SDP: a cube (H, W, C) of 2x2x16"),
        ({"CMAC_B.D_MISC_CFG": {"CONV_MODE": 1}}, "CMAC_B: CONV_MODE or PROC_PRECISION differs"),
        ({"CDMA.D_WEIGHT_BYTES": {"WEIGHT_BYTES": 100}}, "CDMA: 100 weight bytes"),
        ({"CDMA.D_MISC_CFG": {"WEIGHT_REUSE": 1}}, "WEIGHT_REUSE of what no operation has left"),
    ],
)  # fmt: skip
def test_a_layer_that_cannot_run_is_refused(changed: Fields, reason: str) -> None:
    assert reason in refused(SMALL, replace(LAYER, changed=changed).commands())


PAIR = Convolution(
    FULL, (8, 4, 4), (8, 3, 3),
    changed={
        **{f"{each}.D_BATCH_NUMBER": {"BATCHES": 1} for each in ("CDMA", "CSC", "CACC")},
        "CDMA.D_BATCH_STRIDE": {"BATCH_STRIDE": 0x1000 // 32},
        "SDP.D_DST_BATCH_STRIDE": {"DST_BATCH_STRIDE": 0x1000 // 32},
        "SDP.D_DST_LINE_STRIDE": {"DST_LINE_STRIDE": 0x80 // 32},
        "SDP.D_FEATURE_MODE_CFG": {"FLYING_MODE": "ON", "BATCH_NUMBER": 1},
    },
)  # fmt: skip
"""Two images, with lines of results that begin at even atoms."""


def test_two_images_at_once_run() -> None:
    model.run(FULL, [*PAIR.commands(), PAIR.wait()], memory())


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"CSC.D_BATCH_NUMBER": {"BATCHES": 2}}, "CSC: BATCHES = 2"),
        ({"CACC.D_BATCH_NUMBER": {"BATCHES": 0}}, "CACC: BATCHES = 0"),
        ({"SDP.D_FEATURE_MODE_CFG": {"BATCH_NUMBER": 2}}, "SDP: 3 batches"),
        ({"SDP.D_DST_BASE_ADDR_LOW": {"DST_BASE_ADDR_LOW": RESULT // 32 + 1}}, "DST_BASE_ADDR_LOW 0x83000020"),
        ({"SDP.D_DST_LINE_STRIDE": {"DST_LINE_STRIDE": 3}}, "DST_LINE_STRIDE 0x60 with several batches"),
        ({"SDP.D_DST_SURFACE_STRIDE": {"DST_SURFACE_STRIDE": 5}}, "DST_SURFACE_STRIDE 0xa0"),
        ({"CACC.D_DATAOUT_MAP": {"LINE_PACKED": "TRUE"}}, "CACC: packed results of several batches"),
        ({"CDMA.D_BATCH_STRIDE": {"BATCH_STRIDE": 0x100000 // 32}}, "lie outside memory"),
        ({f"{each}.D_MISC_CFG": {"CONV_MODE": 1} for each in ("CDMA", "CSC", "CMAC_A", "CMAC_B", "CACC")},
         "2 batches in winograd convolution"),
        ({"CDMA.D_DATAIN_FORMAT": {"DATAIN_FORMAT": "PIXEL"}}, "2 batches in image convolution"),
    ],
)  # fmt: skip
def test_batches_that_cannot_run_are_refused(changed: Fields, reason: str) -> None:
    assert reason in refused(FULL, replace(PAIR, changed={**PAIR.changed, **changed}).commands())


@pytest.mark.parametrize("machine", [SMALL, LARGE])
def test_a_configuration_without_multi_batch_mode_refuses_it(machine: Machine) -> None:
    pair = {f"{each}.D_BATCH_NUMBER": {"BATCHES": 1} for each in ("CDMA", "CSC", "CACC")}
    text = refused(machine, Convolution(machine, (8, 4, 4), (8, 3, 3), changed=pair).commands())
    assert f"CDMA: 2 batches in direct convolution of {machine.name}" in text


def test_all_images_of_a_batch_must_fit_the_buffer() -> None:
    banks = {f"{each}.D_BANK": {"DATA_BANK": 0, "WEIGHT_BANK": 0} for each in ("CDMA", "CSC")}
    lines = Convolution(FULL, (8, 40, 16), (8, 3, 3), changed={**PAIR.changed, **banks})
    assert "CBUF overflow: 40 slices of 4 entries, 2 batches" in refused(FULL, lines.commands())


def test_data_that_does_not_fit_the_buffer_is_refused() -> None:
    tall = Convolution(SMALL, (8, 200, 4), (8, 3, 3))
    banks = {f"{each}.D_BANK": {"DATA_BANK": 0, "WEIGHT_BANK": 0} for each in ("CDMA", "CSC")}
    text = refused(SMALL, replace(tall, changed=banks).commands())
    assert "CBUF overflow: 200 slices of 4 entries" in text and "512 entries in 1 banks" in text
    assert "help: give data more banks" in text


def test_a_kernel_group_that_does_not_fit_the_weight_banks_is_refused() -> None:
    deep = Convolution(SMALL, (128, 3, 3), (8, 3, 3))
    banks = {f"{each}.D_BANK": {"DATA_BANK": 7, "WEIGHT_BANK": 0} for each in ("CDMA", "CSC")}
    text = refused(SMALL, replace(deep, changed=banks).commands())
    assert "CBUF overflow: a kernel group of 9216 bytes" in text and "4096 in the weight banks" in text


@pytest.mark.parametrize("kind", ["int16", "fp16"])
def test_a_precision_that_the_configuration_has_not_is_refused(kind: str) -> None:
    text = refused(SMALL, Convolution(SMALL, (4, 4, 4), (4, 3, 3), kind).commands())
    assert f"nvdla-small has no {kind}" in text


def test_an_address_of_nv_full_whose_low_bits_are_set_is_refused() -> None:
    layer = Convolution(FULL, (8, 4, 4), (8, 3, 3))
    bent = [
        Write(each.address, each.value | 4) if isinstance(each, Write) and each.address == 0x5034 else each
        for each in layer.commands()
    ]
    assert "D_DAIN_ADDR_LOW_0 0x80000004 is not aligned" in refused(FULL, bent)


def layers(*, waits: bool, second_source: int) -> list[Command]:
    """Two layers in the two groups, the second with a source of its own."""
    second = replace(
        LAYER, shape=(8, 2, 2), kernel=(8, 1, 1), group=1, source=second_source, result=RESULT + 0x1000
    )
    return [*LAYER.commands(), *([LAYER.wait()] if waits else []), *second.commands(), second.wait()]


def test_a_layer_may_not_read_what_the_one_before_still_writes() -> None:
    text = refused(SMALL, layers(waits=False, second_source=RESULT))
    assert "SDP: reads at 0x83000000 what SDP may still write" in text and "help: wait for its interrupt" in text


def test_a_layer_reads_the_result_of_one_that_was_waited_for() -> None:
    model.run(SMALL, layers(waits=True, second_source=RESULT), memory())


def test_two_layers_in_two_groups_run_without_waiting_where_they_share_no_data() -> None:
    x, w = np.ones((8, 4, 4), np.int8), np.ones((8, 8, 3, 3), np.int8)
    after = model.run(SMALL, layers(waits=False, second_source=SOURCE), memory(LAYER.contents(x, w)))
    assert set(after.read(RESULT, 32)) == {72} and set(after.read(RESULT + 0x1000, 32)) == {8}


def test_a_group_that_may_still_run_is_not_programmed_again() -> None:
    text = refused(SMALL, [*LAYER.commands(), *LAYER.commands()])
    assert "of group 0 is written, which may still run" in text


def test_a_group_that_waits_to_run_is_not_programmed_again() -> None:
    text = refused(SMALL, [*LAYER.commands(enable=("CDMA",)), *LAYER.commands()])
    assert "CDMA: D_MISC_CFG of group 0 is written, which waits to run" in text


def test_a_group_is_free_after_its_interrupt() -> None:
    first, second = LAYER.commands(), replace(LAYER, group=1).commands()
    model.run(SMALL, [*first, LAYER.wait(), *second, Wait("SDP", 1), *first, LAYER.wait()], memory())


def test_an_interrupt_that_is_masked_never_comes() -> None:
    mask = writes(SMALL, {"GLB.S_INTR_MASK": {"SDP_DONE_MASK0": 1}})
    assert "SDP_0 is masked" in refused(SMALL, [*mask, *LAYER.commands(), LAYER.wait()])


def test_an_interrupt_comes_once() -> None:
    assert "SDP_0 never comes: no block is enabled" in refused(
        SMALL, [*LAYER.commands(), LAYER.wait(), LAYER.wait()]
    )


def test_a_wait_for_any_interrupt_takes_the_first_that_came() -> None:
    masks = {f"{source}_DONE_MASK{group}": 1 for source in ("CDMA_DAT", "CDMA_WT", "CACC") for group in (0, 1)}
    both = [*writes(SMALL, {"GLB.S_INTR_MASK": masks}), *layers(waits=False, second_source=SOURCE)[:-1]]
    model.run(SMALL, [*both, Wait(), Wait("SDP", 1)], memory())
    assert "SDP_0 never comes" in refused(SMALL, [*both, Wait(), Wait("SDP", 0)])


def test_status_and_pointer_are_read_as_the_hardware_sets_them() -> None:
    small = register_map("nv_small")
    polls: list[Command] = [
        Poll(small["CDMA.S_CBUF_FLUSH_STATUS"].address, 1, 1),
        *LAYER.commands(),
        Poll(small["GLB.S_INTR_STATUS"].address, 1, 1),
        Poll(small["SDP.S_POINTER"].address, 0x10000, 0x10000),
        Poll(small["SDP.D_OP_ENABLE"].address, 1, 0),
    ]
    model.run(SMALL, polls, memory())


def test_a_value_that_a_register_never_has_is_refused() -> None:
    poll = Poll(register_map("nv_small")["GLB.S_INTR_STATUS"].address, 1, 1)
    assert "GLB.S_INTR_STATUS: polled for 0x1" in refused(SMALL, [poll])


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"CSC.D_WEIGHT_SIZE_EXT_1": {"WEIGHT_CHANNEL_EXT": 3, "WEIGHT_KERNEL": 7}}, "kernels of 4 channels"),
        ({"CDMA.D_MEAN_FORMAT": {"MEAN_FORMAT": 1}, "CDMA.D_CVT_CFG": {"CVT_EN": 1}}, "means of 8 channels"),
    ],
)
def test_registers_that_make_no_sense_are_refused_before_anything_is_computed(
    changed: Fields, reason: str
) -> None:
    assert reason in refused(SMALL, replace(LAYER, changed=changed).commands())
