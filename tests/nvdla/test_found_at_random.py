"""What random networks found: mistakes of the compiler, each reduced to what shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc.errors import DoesNotFit, UnsupportedOperator
from npuc.target import Options, Request, target
from tests.compiled import compilation
from tests.nvdla.networks import compiled, expect_exact, verified
from tests.onnx_models import network, node, weights

ALL = pytest.mark.parametrize("name", ["nvdla-small", "nvdla-large", "nvdla-full"])
BOTH = pytest.mark.parametrize("name", ["nvdla-small", "nvdla-full"])


def machine(folder: Path, **values: int) -> str:
    """A machine file."""
    path = folder / "machine.toml"
    path.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
    return str(path)


# fully connected networks


@BOTH
@pytest.mark.parametrize("op", ["HardSwish", "HardSigmoid", "Abs", "LeakyRelu", "Neg"])
def test_functions_between_fully_connected_layers_run_on_sdp(op: str, name: str, tmp_path: Path) -> None:
    nodes = [node("Gemm", "x w", "a"), node(op, "a", "b"), node("Gemm", "b v", "y")]
    report = verified(network(nodes, (1, 20), {"w": weights(20, 24), "v": weights(24, 7)}), tmp_path, name)
    expect_exact(report)
    assert not report["compiled"]["host_steps"]


@BOTH
def test_a_residual_addition_of_rows_is_part_of_the_fully_connected_layer(name: str, tmp_path: Path) -> None:
    nodes = [node("Gemm", "x w", "a"), node("Gemm", "a v", "b"), node("Add", "a b", "c"), node("Relu", "c", "y")]
    report = verified(network(nodes, (1, 20), {"w": weights(20, 24), "v": weights(24, 24)}), tmp_path, name, 3)
    expect_exact(report)
    assert [layer["op"] for layer in report["compiled"]["layers"]] == ["convolution"] * 2


@BOTH
def test_a_fully_connected_layer_behind_a_map_wider_than_a_kernel_runs(name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x v", "a"), node("Flatten", "a", "b"), node("Gemm", "b w", "y")]
    constants = {"v": weights(5, 3, 1, 1), "w": weights(5 * 3 * 48, 12)}
    expect_exact(verified(network(nodes, (1, 3, 3, 48), constants), tmp_path, name))


def test_a_row_that_a_concatenation_takes_twice_is_copied(tmp_path: Path) -> None:
    nodes = [node("Gemm", "x w", "a"), node("Concat", "a a x", "b", axis=1), node("Gemm", "b v", "y")]
    expect_exact(verified(network(nodes, (1, 5), {"w": weights(5, 35), "v": weights(75, 3)}), tmp_path))


# limits, borders, averages


@ALL
@pytest.mark.parametrize(
    ("kernel", "stride", "shape", "pads"),
    [((1, 1), 8, (1, 64, 16, 512), (0, 0, 1, 0)), ((2, 3), 7, (1, 33, 25, 400), (2, 1, 9, 1))],
)
def test_rows_that_see_only_padding_need_none_of_the_lines_above(
    kernel: tuple[int, int], stride: int, shape: tuple[int, ...], pads: tuple[int, ...], name: str, tmp_path: Path
) -> None:
    """The lines between the last two rows of windows, which no window covers, overfilled the CBUF."""
    conv = node("Conv", "x w", "y", strides=[stride, stride], pads=pads)
    small = machine(tmp_path, cbuf_banks=16) if name == "nvdla-small" else machine(tmp_path, cbuf_entries=64)
    model = network([conv], shape, {"w": weights(20, shape[1], *kernel)})
    expect_exact(verified(model, tmp_path, name, machine=small, strict=True))


@BOTH
@pytest.mark.parametrize("limits", [(None, 0.25), (None, -0.25), (-0.75, -0.25)])
def test_upper_limits_that_saturation_cannot_be(
    limits: tuple[float | None, float], name: str, tmp_path: Path
) -> None:
    low, high = limits
    inputs = f"a {'' if low is None else 'low'} high"
    clip = onnx.helper.make_node("Clip", inputs.split(" "), ["y"], name="y")
    constants = {"w": weights(9, 5, 1, 1), "high": np.float32(high)}
    constants |= {} if low is None else {"low": np.float32(low)}
    expect_exact(verified(network([node("Conv", "x w", "a"), clip], (1, 5, 6, 7), constants), tmp_path, name))


@BOTH
@pytest.mark.parametrize(
    ("kernel", "stride", "pads"),
    [(1, 1, (0, 0, 8, 7)), (3, 1, (2, 0, 12, 0)), (2, 2, (5, 0, 12, 1)), (1, 3, (0, 0, 12, 0))],
)
def test_no_tile_of_a_convolution_begins_below_its_map(
    kernel: int, stride: int, pads: tuple[int, ...], name: str, tmp_path: Path
) -> None:
    """Rows that only padding makes belong to the tile before them: one of their own took the map's last line."""
    constants = {"w": weights(17, 4, kernel, 1), "b": weights(17, 1).ravel(), "v": weights(5, 17, 1, 1)}
    nodes = [node("Conv", "x w b", "a", pads=pads, strides=(stride, 1)), node("Conv", "a v", "y")]
    expect_exact(verified(network(nodes, (1, 4, 3, 4), constants), tmp_path, name))


@BOTH
@pytest.mark.parametrize("mode", ["edge", "reflect", "constant"])
def test_padding_of_any_mode_and_axis(mode: str, name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Pad", "a p", "b", mode=mode), node("Conv", "b v", "y")]
    constants = {"w": weights(9, 5, 1, 1), "v": weights(4, 12, 3, 3), "p": np.array([0, 1, 2, 1, 0, 2, 0, 3])}
    expect_exact(verified(network(nodes, (1, 5, 6, 7), constants), tmp_path, name))


def test_a_constant_in_a_concatenation_in_fp16(tmp_path: Path) -> None:
    nodes = [node("Concat", "x c", "a", axis=1), node("Conv", "a w", "y")]
    constants = {"c": weights(1, 20, 3, 3), "w": weights(6, 25, 1, 1)}
    report = verified(network(nodes, (1, 5, 3, 3), constants), tmp_path, "nvdla-full", precision="fp16")
    assert report["status"] == "ok"


@BOTH
@pytest.mark.parametrize("extents", [(1, 61), (37, 5), (1, 197)])
def test_averages_along_axes_that_nothing_divides(extents: tuple[int, int], name: str, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a"), node("Relu", "a", "b"), node("GlobalAveragePool", "b", "y")]
    expect_exact(verified(network(nodes, (1, 3, *extents), {"w": weights(9, 3, 1, 1)}), tmp_path, name), 30.0)


@pytest.mark.parametrize("op", ["Relu", "Add"])
def test_maps_beyond_the_registers_are_folded(op: str, tmp_path: Path) -> None:
    model = network([node(op, "x x" if op == "Add" else "x", "y")], (1, 3, 1, 8194))
    expect_exact(verified(model, tmp_path))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pools_of_maps_beyond_the_registers_are_refused_by_node(op: str, tmp_path: Path) -> None:
    model = network([node(op, "x", "y", kernel_shape=[1, 2])], (1, 3, 1, 8193))
    with pytest.raises(UnsupportedOperator) as caught:
        compiled(model, tmp_path)
    assert [(each.code, each.node) for each in caught.value.problems] == [("E202", "y")]


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("constant", ["w", "b"])
def test_constants_that_are_no_numbers_are_refused_by_name(constant: str, value: float, tmp_path: Path) -> None:
    constants = {"w": weights(4, 3, 1, 1), "b": np.zeros(4, np.float32)}
    constants[constant].flat[2] = value
    with pytest.raises(UnsupportedOperator, match=f"'{constant}' holds") as caught:
        compiled(network([node("Conv", "x w b", "y")], (1, 3, 4, 4), constants), tmp_path)
    assert caught.value.problems[0].node == "y"


# operands


@BOTH
@pytest.mark.parametrize("op", ["Add", "Mul", "Max"])
def test_an_operand_per_channel_may_lie_in_a_larger_map(op: str, name: str, tmp_path: Path) -> None:
    """SDP reads it without gaps, which is not how a pixel of a map lies: a copy does."""
    nodes = [node("Conv", "x w", "a"), node("Slice", "a start end axes", "b"), node(op, "a b", "y")]
    constants = {
        "w": weights(40, 5, 1, 1), "start": np.array([2, 3]), "end": np.array([3, 4]), "axes": np.array([2, 3])
    }  # fmt: skip
    expect_exact(verified(network(nodes, (1, 5, 4, 6), constants), tmp_path, name))


def test_a_gate_that_joins_a_concatenation_is_an_operand_too(tmp_path: Path) -> None:
    nodes = [
        node("GlobalAveragePool", "x", "a"), node("Conv", "a w", "b"), node("Concat", "b b b", "c", axis=3),
        node("Add", "c b", "y"),
    ]  # fmt: skip
    expect_exact(verified(network(nodes, (1, 20, 3, 3), {"w": weights(20, 20, 1, 1)}), tmp_path))


def test_an_operand_per_channel_that_lies_alone_is_read_where_it_is(tmp_path: Path) -> None:
    nodes = [node("GlobalAveragePool", "x", "a"), node("Conv", "a w", "b"), node("Mul", "x b", "y")]
    made = compiled(network(nodes, (1, 20, 3, 3), {"w": weights(20, 20, 1, 1)}), tmp_path)[2]
    layers = made.manifest["report"]["layers"]
    assert [each["op"] for each in layers] == ["pooling", "convolution", "elementwise"]


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_winograd_gives_no_operand_per_channel(precision: str, tmp_path: Path) -> None:
    nodes = [
        node("GlobalAveragePool", "x", "a"), node("Conv", "a w", "b", pads=[1, 1, 1, 1]), node("Mul", "x b", "y")
    ]  # fmt: skip
    model = network(nodes, (1, 40, 4, 6), {"w": weights(40, 40, 3, 3)})
    report = verified(model, tmp_path, "nvdla-full", weights="winograd", precision=precision)
    assert report["bit_exact"] is not False and report["status"] == "ok"


# kernels that share no atom


@pytest.mark.parametrize("group", [1, 4, 32])
@pytest.mark.parametrize(("name", "entries"), [("nvdla-small", 32), ("nvdla-full", 8)])
def test_kernels_of_which_few_fit_leave_lanes_unused(name: str, entries: int, group: int, tmp_path: Path) -> None:
    model = network(
        [node("Conv", "x w", "a", group=group, pads=[1, 1, 1, 1]), node("Conv", "a v", "y")],
        (1, 32, 4, 4),
        {"w": weights(32, 32 // group, 3, 3), "v": weights(5, 32, 1, 1)},
    )
    small = machine(tmp_path, cbuf_banks=8, cbuf_entries=entries)
    report = verified(model, tmp_path, name, machine=small)
    expect_exact(report)
    assert report["compiled"]["layers"][0]["jobs"] > 1


@pytest.mark.parametrize(("name", "entries"), [("nvdla-small", 128), ("nvdla-full", 16)])
def test_a_map_that_is_added_lies_as_the_lanes_of_such_kernels(name: str, entries: int, tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "a", pads=[1, 1, 1, 1]), node("Add", "a x", "b"), node("Relu", "b", "y")]
    model = network(nodes, (1, 64, 4, 4), {"w": weights(64, 64, 3, 3)})
    report = verified(model, tmp_path, name, machine=machine(tmp_path, cbuf_banks=4, cbuf_entries=entries))
    expect_exact(report, 30.0)
    assert [layer["op"] for layer in report["compiled"]["layers"]] == ["convolution"] * 2


def test_a_group_of_kernels_on_a_stock_nv_small_that_exceeds_its_buffer(tmp_path: Path) -> None:
    """18,000 bytes a kernel, of which 98,304 bytes of weight banks hold no 8."""
    w = weights(16, 2000, 3, 3)
    model = network([node("Conv", "x w", "y", group=2, pads=[1, 1, 1, 1])], (1, 4000, 3, 3), {"w": w})
    expect_exact(verified(model, tmp_path, samples=1))


def test_lanes_that_even_a_copy_leaves_unused_are_refused(tmp_path: Path) -> None:
    """CDP takes channels one behind the other; of 38 bytes a kernel 256 bytes of weight banks hold no 8."""
    nodes = [node("Conv", "x w", "a"), node("LRN", "a", "y", size=3)]
    model = network(nodes, (1, 38, 4, 4), {"w": weights(38, 38, 1, 1)})
    with pytest.raises(DoesNotFit, match="not even a copy") as caught:
        compiled(model, tmp_path, machine=machine(tmp_path, cbuf_banks=4, cbuf_entries=16))
    problem = caught.value.problems[0]
    assert problem.code == "E302" and problem.node and problem.remedy


def test_an_array_of_fewer_kernels_than_lanes_leaves_none_unused(tmp_path: Path) -> None:
    path = tmp_path / "network.onnx"
    onnx.save(network([node("Conv", "x w", "y")], (1, 8, 4, 4), {"w": weights(32, 8, 1, 1)}), path)
    options = Options(machine=machine(tmp_path, atomic_k=8))
    made = compilation(Request(path, target("nvdla-large"), options)).program
    assert made.manifest["report"]["layers"][0]["jobs"] == 1


# machines


@ALL
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cbuf_banks = 64", "cbuf_banks = 64"),
        ("elementwise = false\nsdp_lut = true", "sdp_lut without elementwise"),
    ],
)
def test_a_machine_that_registers_cannot_describe_is_refused(
    line: str, said: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(line)
    with pytest.raises(DoesNotFit, match=said) as caught:
        compiled(network([node("Relu", "x", "y")], (1, 3, 4, 4)), tmp_path, name, machine=str(path))
    assert caught.value.problems[0].code == "E305"


@pytest.mark.parametrize("line", ["cbuf_entry_bytes = 64", "atom_bytes = 16"])
def test_units_of_the_registers_of_nv_full_are_kept(line: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(line)
    with pytest.raises(DoesNotFit, match=line):
        compiled(network([node("Relu", "x", "y")], (1, 3, 4, 4)), tmp_path, "nvdla-full", machine=str(path))


def test_winograd_of_a_kernel_of_one_line_keeps_its_stride(tmp_path: Path) -> None:
    """Direct convolutions skip the lines that such a kernel does not meet; its transformed weights have them."""
    nodes = [node("Conv", "x w", "y", strides=[2, 1], pads=[0, 1, 0, 1])]
    model = network(nodes, (1, 5, 6, 7), {"w": weights(5, 5, 1, 3)})
    report = verified(model, tmp_path, "nvdla-full", weights="winograd")
    expect_exact(report)
    assert report["compiled"]["layers"][0]["weight_form"] == "winograd"
