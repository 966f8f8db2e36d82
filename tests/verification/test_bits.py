"""How far floats of the host may be off the integer network's: as far as the operator's own accuracy."""

from __future__ import annotations

import numpy as np
import pytest

from npuc import compile as compiled
from npuc.running import program_inputs
from npuc.samples.loading import varied_samples
from npuc.target import target
from npuc.verification.bits import BitDifferences
from tests.onnx_models import parse

QUANTISED = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4,3,3] x) => (float[1,64] y)
    <float s = {0.1}, int8 z = {0}> {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    c = Conv<kernel_shape = [1, 1]>(d, w, b)
    qc = QuantizeLinear(c, s, z)
    dc = DequantizeLinear(qc, s, z)
    a = GlobalAveragePool(dc)
    f = Flatten(a)
    y = Softmax<axis = -1>(f)
}"""


@pytest.mark.parametrize(
    ("off", "exact"), [(0.0, True), (2e-7, True), (-5e-7, True), (1e-4, False), (-1e-4, False)]
)
@pytest.mark.parametrize("name", ["nvdla-small", "easynpu"])
def test_a_softmax_of_the_host_has_the_room_of_its_own_accuracy(name: str, off: float, exact: bool) -> None:

    random = np.random.default_rng(0)
    w, b = np.zeros((64, 4, 1, 1), np.float32), np.zeros(64, np.float32)
    w[32:], b[32:] = random.uniform(-0.1, 0.1, (32, 4, 1, 1)), -12  # half of the results are next to nothing
    model = parse(QUANTISED, w=w, b=b)
    program = compiled(model, target=name)
    bits = BitDifferences(program.program, target(name))
    for feed in varied_samples(program_inputs(program.program)).feeds():
        seen: dict[str, np.ndarray] = {}
        outputs = program.runner({key: each[None] for key, each in feed.items()}, seen.__setitem__)
        moved = {key: (each[0] + np.float32(off)).astype(np.float32) for key, each in outputs.items()}
        bits.add(feed, {key: each[0] for key, each in seen.items()}, moved)
    assert bits.exact is exact and bool(bits.strayed) is not exact
    assert not list(bits.faults())
