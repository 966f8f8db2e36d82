"""docs/program-schema.json describes NVDLA's manifests, and refuses those without what the simulator reads."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from npuc.program import MANIFEST
from tests.nvdla.networks import compiled
from tests.onnx_models import network, node, weights

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs" / "program-schema.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def manifest(folder: Path, name: str, **options: Any) -> Any:
    """Of a network with a convolution, a pooling, an activation (on nv_small a host step) and softmax."""
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("MaxPool", "a", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Tanh", "p", "t"),
        node("Conv", "t v", "c"),
        node("Softmax", "c", "y", axis=1),
    ]
    model = network(nodes, (1, 3, 8, 8), {"w": weights(5, 3, 3, 3), "v": weights(4, 5, 4, 4)})
    compiled(model, folder, name, **options)
    return json.loads((folder / "network.npu" / MANIFEST).read_text("utf-8"))


@pytest.mark.parametrize(
    ("name", "precision"),
    [("nvdla-small", "int8"), ("nvdla-large", "int8"), ("nvdla-full", "int8"), ("nvdla-full", "fp16")],
)
def test_manifests_follow_the_schema(name: str, precision: str, tmp_path: Path) -> None:
    errors = VALIDATOR.iter_errors(manifest(tmp_path, name, precision=precision))
    assert [f"{'.'.join(map(str, error.path))}: {error.message}" for error in errors] == []


def objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(found for each in value.values() for found in objects(each))]
    return [found for each in value for found in objects(each)] if isinstance(value, list) else []


def test_no_key_that_the_simulator_reads_may_be_missing(tmp_path: Path) -> None:
    whole = manifest(tmp_path, "nvdla-small")
    for part in ("steps", "machine", "dram", "operations", "inputs", "outputs"):
        attributes = [each.get("attrs") for each in objects(whole[part])]
        for position, each in enumerate(objects(whole[part])):
            if any(each is found for found in attributes):
                continue
            for key in each:
                changed = copy.deepcopy(whole)
                del objects(changed[part])[position][key]
                assert not VALIDATOR.is_valid(changed), (part, key)


def test_a_manifest_of_one_target_is_not_one_of_another(tmp_path: Path) -> None:
    whole = manifest(tmp_path, "nvdla-small")
    assert not VALIDATOR.is_valid({**whole, "target": "easynpu"})
    assert not VALIDATOR.is_valid({**whole, "target": "other"})
    assert not VALIDATOR.is_valid({**whole, "unknown": 1})
