"""The largest values that a tensor of integers can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npuc.errors import Problem, UnsupportedOperator
from npuc.ir import Node
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.scales.assignment import EXPONENTS
from npuc.quantize.scales.constraints import data_inputs

LARGEST = 127 * 2.0 ** float(EXPONENTS[-1])
"""What int8 reaches with the largest scale; an infinity in disguise, such as -3.4e38, is far beyond."""


def expect_within_reach(nodes: Sequence[Node], histograms: Mapping[str, Histogram]) -> None:
    """Raises UnsupportedOperator (E205) for every node that reads or writes a tensor with larger values."""
    beyond = {name: each.largest for name, each in histograms.items() if each.largest > LARGEST}
    found: list[Problem] = []
    for node in nodes if beyond else ():
        name = next((name for name in (*node.outputs, *data_inputs(node)) if name in beyond), None)
        if name is not None:
            reason = f"values reach {beyond[name]:.3g}: larger ones would saturate"
            remedy = "the host (--fallback host), or smaller weights"
            found.append(Problem("E205", reason, node.source, node.op, name, f"{LARGEST:.3g}", remedy))
    if found:
        raise UnsupportedOperator.of(found)
