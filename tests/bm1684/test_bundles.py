"""Moves stand beside computations only where neither needs the other's result."""

from __future__ import annotations

from npuc.targets.bm1684.lowering.kernel import Call, Local, Step, SystemPlace
from npuc.targets.bm1684.machine.local_memory import Dim4
from npuc.targets.bm1684.plan.planner import Bundle, bundle_steps

SHAPE = Dim4(1, 4, 2, 8)
STRIDE = Dim4(64, 16, 8, 1)


def _compute(reads: str, writes: str) -> Step:
    args = (Local(writes), Local(reads), SHAPE, None, None)
    return Step((Call("bdc_relu", args, (reads,), writes),), writes)


def _store(buffer: str, offset: int) -> Step:
    args = (SystemPlace("scratch", offset), Local(buffer), SHAPE, STRIDE, None)
    return Step((Call("gdma_32bit_cpy_L2S", args, (buffer,)),), buffer)


def _fetch(buffer: str, offset: int) -> Step:
    args = (Local(buffer), SystemPlace("scratch", offset), SHAPE, None, STRIDE)
    return Step((Call("gdma_32bit_cpy_S2L", args, (), buffer),), buffer)


def _beside(bundles: list[Bundle]) -> list[tuple[str, list[str]]]:
    """What every bundle computes or moves, and the moves beside it."""
    return [(bundle.step.node, [call.name[-3:] for call in bundle.moves]) for bundle in bundles]


def test_a_result_is_stored_beside_the_next_computation() -> None:
    steps = [_compute("a", "b"), _store("b", 0), _compute("c", "d")]
    assert _beside(bundle_steps(steps)) == [("b", []), ("d", ["L2S"])]


def test_a_store_ends_before_what_it_reads_is_overwritten() -> None:
    steps = [_compute("a", "b"), _store("b", 0), _compute("c", "b")]
    assert _beside(bundle_steps(steps)) == [("b", []), ("b", []), ("b", [])]


def test_rows_are_fetched_beside_the_computation_before() -> None:
    steps = [_compute("a", "b"), _store("b", 0), _fetch("c", 4096), _compute("c", "d")]
    assert _beside(bundle_steps(steps)) == [("b", ["S2L"]), ("d", ["L2S"])]


def test_what_a_store_writes_is_fetched_after_it() -> None:
    """256 bytes are stored from offset 0; the fetch starts at the last of them."""
    steps = [_compute("a", "b"), _store("b", 0), _fetch("c", 252), _compute("c", "d")]
    assert _beside(bundle_steps(steps)) == [("b", []), ("b", []), ("c", []), ("d", [])]


def test_nothing_is_fetched_to_where_a_computation_is() -> None:
    steps = [_compute("a", "b"), _fetch("a", 0), _compute("a", "c")]
    assert _beside(bundle_steps(steps)) == [("b", []), ("a", []), ("c", [])]


def test_the_last_store_has_a_turn_of_its_own() -> None:
    assert _beside(bundle_steps([_compute("a", "b"), _store("b", 0)])) == [("b", []), ("b", [])]
