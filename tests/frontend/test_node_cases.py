"""ONNX's own operator test cases, of every operator that the frontend knows, on float32."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.frontend.importers import IMPORTERS
from npuc.ir import Array
from npuc.ops.interpreter import run

Case = tuple[str, onnx.ModelProto, list[Array], list[Array]]

# Inputs after the first are side inputs of these operators even where they are floats.
SIDE_INPUTS = {"Clip", "Resize", "Pad", "BatchNormalization", "QuantizeLinear", "DequantizeLinear", "Dropout"}
SOUND_REFUSALS = {"E106", "E107", "E202"}


def cases() -> Iterator[Case]:
    """The cases of known operators whose inputs and outputs are non-empty arrays."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in found:
        if case.model is None or "_expanded" in case.name:
            continue
        inputs, outputs = (list(each) for each in case.data_sets[0])
        known = all(node.op_type in IMPORTERS and not node.domain for node in case.model.graph.node)
        if known and all(isinstance(each, np.ndarray) and each.size for each in (*inputs, *outputs)):
            yield case.name, case.model, inputs, outputs


@pytest.fixture(scope="module")
def all_cases() -> list[Case]:
    return list(cases())


def bound(model: onnx.ModelProto, inputs: list[Array]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with its side inputs as constants, and the values of the others."""
    copy, feeds = onnx.ModelProto(), dict[str, Array]()
    copy.CopyFrom(model)
    side = SIDE_INPUTS.intersection(node.op_type for node in model.graph.node)
    for index, (declared, value) in enumerate(zip(model.graph.input, inputs, strict=True)):
        if index and (side or value.dtype != np.float32):
            copy.graph.initializer.append(numpy_helper.from_array(value, declared.name))
        else:
            feeds[declared.name] = value
    return copy, feeds


def test_every_case_is_computed_or_soundly_refused(all_cases: list[Case]) -> None:
    computed, wrong = 0, list[str]()
    for name, model, inputs, outputs in all_cases:
        copy, feeds = bound(model, inputs)
        try:
            graph = import_model(copy, None, {key: value.shape for key, value in feeds.items()})
        except NpucError as error:
            wrong.extend(f"{name}: {each}" for each in error.problems if each.code not in SOUND_REFUSALS)
            continue
        found = run(graph, feeds)
        computed += 1
        for declared, wanted in zip(model.graph.output, outputs, strict=True):
            value = found[declared.name]
            if value.dtype != wanted.dtype or value.shape != wanted.shape:
                wrong.append(f"{name}: {value.dtype}{value.shape}, not {wanted.dtype}{wanted.shape}")
            elif not np.allclose(value.astype(float), wanted.astype(float), rtol=1e-3, atol=1e-5, equal_nan=True):
                wrong.append(f"{name}: {np.abs(value.astype(float) - wanted.astype(float)).max()}")
    assert not wrong
    assert computed > 100
