"""The sizes of values that a tensor of integers can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npuc.errors import Problem, UnsupportedOperator
from npuc.ir import Node
from npuc.quantize.calibration.histograms import NOTHING, Histogram
from npuc.quantize.scales.assignment import EXPONENTS
from npuc.quantize.scales.constraints import data_inputs

LARGEST = 127 * 2.0 ** float(EXPONENTS[-1])
"""What int8 reaches with the largest scale; an infinity in disguise, such as -3.4e38, is far beyond."""


def expect_within_reach(nodes: Sequence[Node], histograms: Mapping[str, Histogram]) -> None:
    """Raises UnsupportedOperator (E205) for every node that reads or writes a tensor with larger values, or with
    none above NOTHING."""
    beyond = {name: each.largest for name, each in histograms.items() if _unreachable(each)}
    found: list[Problem] = []
    for node in nodes if beyond else ():
        name = next((name for name in (*node.outputs, *data_inputs(node)) if name in beyond), None)
        if name is not None:
            found.append(_problem(node, name, beyond[name]))
    if found:
        raise UnsupportedOperator.of(found)


def _unreachable(values: Histogram) -> bool:
    return values.largest > LARGEST or 0 < values.largest <= NOTHING


def _problem(node: Node, tensor: str, largest: float) -> Problem:
    small = largest <= NOTHING
    reason = (
        "values are too small for a scale" if small else f"values reach {largest:.3g}: larger ones would saturate"
    )
    limit = f"more than {NOTHING:.3g}" if small else f"{LARGEST:.3g}"
    remedy = f"the host (leave out --strict), or {'larger' if small else 'smaller'} weights"
    return Problem("E205", reason, node.source, node.op, tensor, limit, remedy)
