"""Drawn networks on all configurations: every bit is right, or a refusal says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npuc.errors import NpucError
from npuc.onnx_files.export import to_onnx
from npuc.registry import TARGETS
from npuc.verification.metrics import Tolerance
from tests.graphs.drawn import drawn
from tests.nvdla.networks import verified

CONFIGURATIONS = [each for each in TARGETS if each.startswith("nvdla")]
REFUSALS = ("E202", "E302")
"""Operators in forms that NVDLA has not; kernels that no CBUF of the size holds."""
BORDERS = {
    "steps": (1, 8),
    "extents": (1, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 24, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257),
    "most_elements": 12_000,
}
"""What is drawn has extents around powers of two, where hardware has its limits."""


def options(seed: int, folder: Path) -> dict[str, Any]:
    """What is asked of the compilation: in turn forms of weights, precisions, and a smaller CBUF."""
    name = CONFIGURATIONS[seed % 3]
    asked: dict[str, Any] = (
        {"weights": ("auto", "direct", "winograd", "sparse")[seed % 4]} if name == "nvdla-full" else {}
    )
    if name == "nvdla-full" and seed % 5 > 2:
        asked["precision"] = ("int16", "fp16")[seed % 2]
    if seed % 4 == 1:
        machine = folder / "small.toml"
        machine.write_text(f"cbuf_banks = {(4, 8)[seed % 2]}\ncbuf_entries = 64\n")
        asked["machine"] = str(machine)
    return asked


@pytest.mark.parametrize("seed", sorted({*range(60)} - {2, 35, 56}))  # in these nothing is left to compute
def test_a_random_network_is_bit_exact_or_refused(seed: int, tmp_path: Path) -> None:
    model, asked = to_onnx(drawn(seed, **BORDERS)[0]), options(seed, tmp_path)
    try:
        report = verified(model, tmp_path, CONFIGURATIONS[seed % 3], samples=2, tolerance=LOOSE, **asked)
        refused = ()
    except NpucError as error:
        report, refused = {"bit_exact": None, "status": "ok"}, error.problems
    assert report["bit_exact"] is not False and report["status"] == "ok"
    assert all(each.code in REFUSALS and each.remedy and each.node for each in refused), refused


LOOSE = Tolerance(sqnr_db=5, cosine=0.8)
"""Random functions of noise: int8 is within 10 dB of most of them."""
