"""Convolutions with block structure: which channels the words of a chunk of outputs sweep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.api import compile, verify
from npuc.ir import Array
from npuc.targets.easynpu.layers.convolutions import block_chunk, used_runs
from tests.onnx_models import network, node

MANY = 10_000
"""Pixels of a map so large that every cycle a pixel counts more than another word."""


def weights(outputs: int, inputs: int, *used: tuple[int, int]) -> Array:
    """(outputs, inputs, 1, 1) with weights from the first to the last of each pair of channels."""
    w = np.zeros((outputs, inputs, 1, 1), np.int8)
    for first, last in used:
        w[:, first : last + 1] = 1
    return w


@pytest.mark.parametrize(
    ("used", "pixels", "runs"),
    [
        (((0, 15),), MANY, [(0, 16)]),
        (((20, 40),), MANY, [(16, 41)]),  # from the start of a word to the last channel with a weight
        (((0, 8), (34, 42)), MANY, [(0, 9), (32, 43)]),
        (((0, 8), (16, 24)), MANY, [(0, 9), (16, 25)]),
        (((0, 15), (16, 31)), MANY, [(0, 32)]),
        (((0, 8), (16, 24)), 1, [(0, 25)]),  # 7 channels for a pixel cost less than another part's 9 cycles
        (((0, 8), (34, 42)), 1, [(0, 9), (32, 43)]),  # 23 channels do not
        ((), MANY, [(0, 16)]),
    ],
)
def test_runs_leave_out_channels_without_weights(
    used: tuple[tuple[int, int], ...], pixels: int, runs: list[tuple[int, int]]
) -> None:
    found = used_runs(weights(16, 64, *used), pixels)
    assert [(run.start, run.stop) for run in found] == runs


@pytest.mark.parametrize(
    ("blocks", "channels", "words"),
    [(1, 64, 4 + 4), (2, 64, 4 + 4), (8, 64, 4 + 4), (4, 80, 2 + 4 + 3 + 5), (3, 72, 2 + 3 + 2 + 5)],
)
def test_documented_words_compute_groups_whose_weights_are_loaded_apart(
    blocks: int, channels: int, words: int, tmp_path: Path
) -> None:
    """A tile of 32 outputs (16 where they are odd) loads the words that it reads, again where tiles share them.

    words: those of a pixel, 16 channels each, that are loaded by each tile and stored.
    """
    random = np.random.default_rng(blocks)
    w = random.standard_normal((channels, channels // blocks, 3, 3)).astype(np.float32)
    shape = (1, channels, 6, 5)
    model = network([node("Conv", "x w", "y", pads=[1] * 4, group=blocks)], shape, {"w": w})
    data = {"x": random.standard_normal((3, *shape)).astype(np.float32)}
    program = compile(model, "easynpu", calibration=data, isa="documented", strict=True)
    assert verify(model, program, data)["bit_exact"]
    assert program.report["host_traffic"]["map_bytes"] == 16 * 6 * 5 * words


def test_a_chunk_of_outputs_keeps_to_one_group() -> None:
    """Two groups of 32: chunks of 32 sweep 32 channels for two words of outputs each, one of 64 sweeps all 64."""
    w = np.kron(np.eye(2, dtype=np.int8), np.ones((32, 32), np.int8))[..., None, None]
    assert block_chunk(w, 256, MANY) == 32
    assert block_chunk(w, 16, MANY) == 16


def test_few_pixels_are_computed_at_once() -> None:
    """One job sweeps 2 * 4 channels and takes 15 cycles more; two jobs sweep 2 and 4 and take 9 each."""
    w = np.kron(np.eye(2, dtype=np.int8), np.ones((16, 2), np.int8))[..., None, None]
    assert block_chunk(w, 32, 1) == 32
    assert block_chunk(w, 32, 2) == 16
