"""What the report tells of layers: costs and alternatives, values at the limits, names in the roofline."""

from __future__ import annotations

import re
from typing import Any

import pytest

from npuc.reports.charts import at_limits, roofline
from npuc.reports.layers import alternatives, costliest

FORMS = [{"weight_form": "direct", "cycles": 90, "bytes": 1}, {"weight_form": "image", "cycles": 120, "bytes": 2}]
LAYERS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, []),
    # forms are compared with the chosen form alone, not with the layer among others
    ({"weight_form": "image", "alternatives": FORMS}, [-30]),
    ({"weight_form": "direct", "alternatives": FORMS}, [30]),
    ({"weight_form": "other", "alternatives": FORMS}, []),
    ({"tile_fewest_cycles": 99}, [-1]),
    ({"tile_fewest_cycles": 100}, []),
    ({"tile_fewest_cycles": None}, []),
    # the runner-up is of the first job: it is told of a layer with one
    ({"tile_runner_up": [2, 3, 107], "jobs": 1}, [7]),
    ({"tile_runner_up": [2, 3, 107], "jobs": 2}, []),
    ({"bdc_cycles": 60, "gdma_cycles": 70}, [-30]),
    ({"bdc_cycles": 60, "gdma_cycles": 100}, []),
    ({"padding_cycles": 5, "tile_fewest_cycles": 80}, [-20, -5]),
]


@pytest.mark.parametrize(("layer", "changes"), LAYERS)
def test_alternatives_are_those_measured_and_told_from_the_fastest(
    layer: dict[str, Any], changes: list[int]
) -> None:
    assert [change for _, change in alternatives({"cycles": 100, **layer})] == changes


def test_the_costliest_layers_come_first_and_those_without_cycles_not_at_all() -> None:
    layers = [{"cycles": cycles} for cycles in (3, 0, 9, 1, 9, 2, 4)]
    assert [each["layer"] for each in costliest(layers)] == [2, 4, 6, 0, 5]
    assert costliest([{"cycles": 0}]) == []


@pytest.mark.parametrize(
    ("zero_point", "limits"), [(-128, [127]), (-127, [-128, 127]), (0, [-128, 127]), (127, [-128])]
)
def test_a_limit_that_stands_for_zero_is_exact(zero_point: int, limits: list[int]) -> None:
    assert (at_limits(zero_point).nonzero()[0] - 128).tolist() == limits


def test_names_in_the_roofline_never_cover_one_another_and_the_costliest_has_one() -> None:
    layers = [{"name": f"layer{at}", "macs": 1000 + at, "bytes": 100, "cycles": 50 + at} for at in range(20)]
    layers.append({"name": "apart", "macs": 10, "bytes": 100, "cycles": 5})
    names = [layer["name"] for layer in layers]
    found = roofline(layers, names, 64, 4)
    placed = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="note inside">(\w+)<', found)
    assert {"layer19", "apart"} <= {name for _, _, name in placed}
    spans = [(float(x), float(x) + 6 * len(name), float(y)) for x, y, name in placed]
    assert all(left >= 0 and right <= 1080 for left, right, _ in spans)
    assert not any(
        a[0] < b[1] and b[0] < a[1] and abs(a[2] - b[2]) < 12 for at, a in enumerate(spans) for b in spans[:at]
    )
