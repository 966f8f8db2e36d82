"""A file of a few bytes that asks for gigabytes is refused at once, and by one budget for all that it asks for."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc.errors import DataError, ModelError
from npuc.frontend import import_model, load
from npuc.ir import TensorType
from npuc.samples import loading as data
from npuc.system import budget

ROOT = Path(__file__).resolve().parents[2]
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)


def model_of(nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto], **more: object) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [X], [Y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, **more)


def shape(name: str, *extents: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(extents, np.int64), name)


def call(number: int, source: str, target: str) -> onnx.NodeProto:
    return helper.make_node(f"f{number}", [source], [target], domain="own")


def nested_functions() -> onnx.ModelProto:
    """Thirty functions, each calling the next twice: 2^30 nodes."""
    opset, own = helper.make_opsetid("", 17), helper.make_opsetid("own", 1)
    functions = [
        helper.make_function(
            "own", f"f{n}", ["a"], ["c"],
            [call(n + 1, "a", "b"), call(n + 1, "b", "c")], [opset, own],
        )
        for n in range(30)
    ]  # fmt: skip
    functions.append(
        helper.make_function("own", "f30", ["a"], ["c"], [helper.make_node("Relu", ["a"], ["c"])], [opset])
    )
    graph = helper.make_graph([helper.make_node("f0", ["x"], ["y"], domain="own")], "g", [X], [Y])
    return helper.make_model(graph, opset_imports=[opset, own], functions=functions, ir_version=8)


def recursive_function() -> onnx.ModelProto:
    opset, own = helper.make_opsetid("", 17), helper.make_opsetid("own", 1)
    body = [helper.make_node("f", ["a"], ["b"], domain="own")]
    function = helper.make_function("own", "f", ["a"], ["b"], body, [opset, own])
    graph = helper.make_graph([helper.make_node("f", ["x"], ["y"], domain="own")], "g", [X], [Y])
    return helper.make_model(graph, opset_imports=[opset, own], functions=[function], ir_version=8)


def several_constants() -> onnx.ModelProto:
    """Eight of 2^28 elements."""
    fill = numpy_helper.from_array(np.ones(1, np.float32))
    nodes = [helper.make_node("ConstantOfShape", ["s"], [f"c{n}"], value=fill) for n in range(8)]
    return model_of(
        [*nodes, helper.make_node("Sum", ["x", *(f"c{n}" for n in range(8))], ["y"])], [shape("s", 1 << 28)]
    )


def many_small_ones() -> onnx.ModelProto:
    """Each is a quarter of the budget."""
    nodes = [helper.make_node("ConstantOfShape", ["s"], [f"c{n}"]) for n in range(8)]
    return model_of(
        [*nodes, helper.make_node("Sum", ["x", *(f"c{n}" for n in range(8))], ["y"])], [shape("s", 1 << 26)]
    )


def long_range() -> onnx.ModelProto:
    bounds = [
        numpy_helper.from_array(np.array(value, np.int64), name)
        for name, value in (("a", 0), ("b", 1 << 40), ("c", 1))
    ]
    nodes = [helper.make_node("Range", ["a", "b", "c"], ["r"]), helper.make_node("Cast", ["r"], ["f"], to=1)]
    return model_of([*nodes, helper.make_node("Add", ["x", "f"], ["y"])], bounds)


def by_reference(op: str, constants: list[onnx.TensorProto], **attributes: object) -> onnx.ModelProto:
    node = helper.make_node(op, [each.name for each in constants], ["r"], **attributes)
    return model_of(
        [node, helper.make_node("Cast", ["r"], ["f"], to=1), helper.make_node("Add", ["x", "f"], ["y"])], constants
    )


def doublings(source: str, more: list[onnx.NodeProto], last: int = 27) -> list[onnx.NodeProto]:
    """A vector joined with itself again and again, then other nodes, which read `d26`."""
    names = [source, *(f"d{n}" for n in range(last))]
    return [helper.make_node("Concat", [a, a], [b], axis=0) for a, b in pairwise(names)] + more


def doubled(element: type, *more: onnx.NodeProto) -> onnx.ModelProto:
    """2^29 elements of a constant, in a file of 1 KB."""
    constant = numpy_helper.from_array(np.ones(4).astype(element), "c")
    return model_of([*doublings("c", list(more)), helper.make_node("Add", ["x", "s"], ["y"])], [constant])


def doubled_in_a_branch(last: onnx.NodeProto) -> onnx.ModelProto:
    """The same where the condition is known at run time only: ONNX infers the shapes."""
    branches: dict[str, Any] = {
        name: helper.make_graph(nodes, name, [], [helper.make_tensor_value_info("s", TensorProto.FLOAT, None)])
        for name, nodes in (("then_branch", doublings("c", [last])), ("else_branch", doublings("c", [], 0)))
    }
    branches["else_branch"].node.append(helper.make_node("Identity", ["c"], ["s"]))
    made = doubled(np.float32)
    del made.graph.node[:]
    made.graph.node.extend(
        [helper.make_node("If", ["k"], ["s"], **branches), helper.make_node("Add", ["x", "s"], ["y"])]
    )
    made.graph.input.append(helper.make_tensor_value_info("k", TensorProto.BOOL, []))
    made.graph.input.append(helper.make_tensor_value_info("n", TensorProto.INT64, [1]))
    return made


SUM = helper.make_node("ReduceSum", ["d26"], ["s"], keepdims=0)
VALUES = numpy_helper.from_array(np.ones(8, np.float32), "v")
COUNT = numpy_helper.from_array(np.array(1 << 31), "n")
COLUMN = numpy_helper.from_array(np.ones((1 << 15, 1), np.float32), "a")
ROW = numpy_helper.from_array(np.ones((1, 1 << 15), np.float32), "b")
HUGE = {
    "nested functions": (nested_functions(), "E110"),
    "a recursive function": (recursive_function(), "E104"),
    "several constants": (several_constants(), "E110"),
    "many that fit alone": (many_small_ones(), "E110"),
    "a long range": (long_range(), "E110"),
    "a tile": (by_reference("Tile", [VALUES, shape("n", 1 << 30)]), "E110"),
    "a window function": (by_reference("HannWindow", [COUNT]), "E110"),
    "an outer product": (model_of([helper.make_node("MatMul", ["a", "b"], ["m"]),
        helper.make_node("ReduceSum", ["m"], ["s"], keepdims=0), helper.make_node("Add", ["x", "s"], ["y"])],
        [COLUMN, ROW]), "E110"),
    "an expansion at run time": (model_of([helper.make_node("Expand", ["x", "s"], ["y"])],
        [shape("s", 1 << 28, 4)]), "E110"),
}  # fmt: skip


DOUBLED = {
    "floats": (doubled(np.float32, SUM), "E110"),
    "doubles": (doubled(np.float64, SUM, helper.make_node("Cast", ["s"], ["f"], to=1)), "E110"),
    "words": (doubled(np.str_, helper.make_node("StringNormalizer", ["d26"], ["s"])), "E110"),
    "in a branch of unknown shape": (
        doubled_in_a_branch(helper.make_node("Reshape", ["d26", "n"], ["s"])),
        "E202",
    ),
}


@pytest.mark.parametrize("name", DOUBLED)
def test_a_constant_doubled_again_and_again_is_refused_once_by_npucs_own_sizes(tmp_path: Path, name: str) -> None:
    model, code = DOUBLED[name]
    onnx.save(model, tmp_path / "m.onnx")
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "sys.argv[0] = 'npuc'; from npuc.__main__ import main; main()"
    )
    command = [sys.executable, "-c", script, "check", tmp_path / "m.onnx", "--target", "easynpu"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)
    assert done.returncode == 1 and f"error[{code}]" in done.stderr, done.stderr
    assert not any(each in done.stderr for each in ("Traceback", "not known before")), done.stderr
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2 << 20


@pytest.mark.parametrize("name", HUGE)
def test_a_small_model_that_asks_for_much_is_refused_fast_and_in_little_memory(tmp_path: Path, name: str) -> None:
    model, code = HUGE[name]
    onnx.save(model, tmp_path / "m.onnx")
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)); "
        "from npuc.frontend import load; from npuc.errors import NpucError; from pathlib import Path\n"
        "try: load(Path(sys.argv[1]))\n"
        "except NpucError as error: print(error.problems[0].code)\n"
        "status = Path('/proc/self/status').read_text()\n"  # ru_maxrss would count the process that runs the tests
        "print(int(status.split('VmHWM:')[1].split()[0]) >> 10)"
    )
    started = time.process_time()
    command = [sys.executable, "-c", script, tmp_path / "m.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=True)
    found, megabytes = done.stdout.split()
    assert (found, int(megabytes) < (1300 if "fit" in name else 500)) == (code, True), done.stdout
    assert time.process_time() - started < 20


def test_what_fits_the_limit_is_computed(tmp_path: Path) -> None:
    model = model_of(
        [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("Add", ["x", "c"], ["y"])],
        [shape("s", 1000, 4)],
    )  # fmt: skip
    assert import_model(model).shape("y") == (1000, 4)
    onnx.save(model, tmp_path / "m.onnx")
    with budget.set_limits(20_000), pytest.raises(ModelError) as caught:
        load(tmp_path / "m.onnx")
    (problem,) = caught.value.problems
    assert (problem.code, problem.limit) == ("E110", "20,000 bytes") and "--memory-limit" in (problem.remedy or "")


def test_views_of_a_constant_count_once() -> None:
    weights = numpy_helper.from_array(np.ones((4, 1000), np.float32), "w")
    nodes = [helper.make_node("Identity", ["w" if n == 0 else f"w{n}"], [f"w{n + 1}"]) for n in range(50)]
    model = model_of([*nodes, helper.make_node("MatMul", ["x", "w50"], ["y"])], [weights])
    with budget.set_limits(16_000 + 60 * 2 * budget.NODE_BYTES):
        import_model(model)


def squeezed(path: Path, **arrays: tuple[tuple[int, ...], str]) -> None:
    """Arrays of zeros, compressed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (extents, kind) in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                header = {"descr": kind, "fortran_order": False, "shape": extents}
                np.lib.format.write_array_header_1_0(member, header)
                for _ in range(0, int(np.prod(extents)) * np.dtype(kind).itemsize, 1 << 20):
                    member.write(bytes(1 << 20))


def test_labels_that_inflate_are_refused_unread(tmp_path: Path) -> None:
    squeezed(tmp_path / "d.npz", x=((1 << 18, 1), "<f4"), y=((1 << 24,), "<i8"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with budget.set_limits(1 << 26), pytest.raises(DataError) as caught:
        data.load([tmp_path / "d.npz"], {"x": TensorType((1, 1), "float32")})
    assert caught.value.problems[0].code == "E403"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


def test_inputs_beyond_the_budget_are_read_block_by_block(tmp_path: Path) -> None:
    squeezed(tmp_path / "d.npz", x=((1 << 20, 4), "<f4"))
    with budget.set_limits(1 << 20):
        found = data.load([tmp_path / "d.npz"], {"x": TensorType((1, 4), "float32")})
    assert len(found) == 1 << 20 and next(iter(found.batches(4))).inputs["x"].shape == (4, 1, 4)
