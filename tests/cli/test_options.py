"""What options of the command line mean, and which values are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

from npuc.cli.options import TargetCommand, bind_option, scheduler_option, shape_option, shapes_option
from npuc.cli.output import PATH
from npuc.program import MANIFEST
from tests.cli.process import npuc


def _given(option: Any, *arguments: str) -> Any:
    """The value of the one option of a command. Raises AssertionError with the message if it is refused."""
    found: list[Any] = []

    @click.command()
    @option
    def command(**values: Any) -> None:
        found.extend(values.values())

    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return found[0]


def test_a_shape_is_a_name_and_extents() -> None:
    assert _given(shape_option, "--input-shape", "x:0=1,3,224") == {"x:0": (1, 3, 224)}
    assert _given(shape_option, "--input-shape", "a=b=2", "--input-shape", "s=") == {"a=b": (2,), "s": ()}


@pytest.mark.parametrize("text", ["x", "=1,3", "x=1,,3", "x=1,0", "x=-1", "x=a", f"x={'1' * 20}"])
def test_what_is_no_shape_is_refused(text: str) -> None:
    with pytest.raises(AssertionError, match="not of the form NAME=1,3,224,224"):
        _given(shape_option, "--input-shape", text)


def test_several_shapes_of_an_input_are_variants_which_share_an_only_one() -> None:
    arguments = [f"--input-shape={text}" for text in ("x=1,3", "y=2", "x=1,5", "x=1,3")]
    assert _given(shapes_option, *arguments) == ({"x": (1, 3), "y": (2,)}, {"x": (1, 5), "y": (2,)})


def test_unlike_numbers_of_shapes_are_refused() -> None:
    arguments = [f"--input-shape={text}" for text in ("x=1", "x=2", "x=3", "y=1", "y=2")]
    with pytest.raises(AssertionError, match="'y' has 2 shapes and another input 3"):
        _given(shapes_option, *arguments)


def test_a_bound_value_is_a_number_or_a_truth_value() -> None:
    found = _given(bind_option, "--bind", "a=b=0.5", "--bind", "t=True", "--bind", "f=false")
    assert found == (("a=b", 0.5), ("t", 1.0), ("f", 0.0))


@pytest.mark.parametrize("text", ["x", "=1", "x=", "x=one"])
def test_what_binds_nothing_is_refused(text: str) -> None:
    with pytest.raises(AssertionError, match="not of the form NAME=VALUE"):
        _given(bind_option, "--bind", text)


@pytest.mark.parametrize("text", ["tcp://host", "tcp://host:", "tcp://host:port"])
def test_an_address_has_a_port(text: str) -> None:
    assert _given(scheduler_option, "--scheduler", "tcp://host:8786") == "tcp://host:8786"
    with pytest.raises(AssertionError, match="not of the form tcp://HOST:PORT"):
        _given(scheduler_option, "--scheduler", text)


@click.command()
@click.argument("model", type=PATH)
@click.option("--data", type=PATH, multiple=True)
@click.option("-o", "--output", type=PATH)
def _reading(**_values: Any) -> None:
    """Reads a model and data, and writes an output."""


def _refusal(*arguments: str) -> str:
    return CliRunner().invoke(_reading, arguments).output


def test_what_is_read_is_not_written_and_may_be_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m", "d"):
        Path(name).touch()
    Path("folder").mkdir()
    Path("program").mkdir()
    Path("program", MANIFEST).touch()
    assert _refusal("m", "--data", "d", "--data", "d", "-o", "folder/r") == ""
    assert "'m' would be both read and written" in _refusal("m", "-o", "./m")
    assert "'program/r' would be written into 'program', which is read" in _refusal("program", "-o", "program/r")
    assert _refusal("folder", "-o", "folder/r") == ""
    assert "the path is empty" in _refusal("")


def test_flags_of_an_installed_target_are_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from npuc.cli import options
    from npuc.flag import Flag

    flag = Flag("isa", ("one", "two"), "An option of another target.")

    def flags_of(name: str) -> tuple[Flag, ...]:
        return (flag,) if name == "abacus" else ()

    monkeypatch.setattr(options, "_flags_of", flags_of)

    @click.command(cls=TargetCommand)
    @click.option("--target")
    @click.option("--targets")
    @options.target_flags
    def command(**values: Any) -> None:
        click.echo(values["isa"])

    for arguments in (["--target=abacus"], ["--target", "abacus"], ["--targets", "bm1684,abacus:m"]):
        assert CliRunner().invoke(command, [*arguments, "--isa", "two"]).output == "two\n"
    assert CliRunner().invoke(command, ["--target", "easynpu", "--isa", "documented"]).output == "documented\n"
    assert CliRunner().invoke(command, ["--target", "abacus", "--isa", "documented"]).exit_code == 2


def _written_over(folder: Path) -> dict[str, tuple[str, ...]]:
    """Commands whose output would harm what they read, in a folder of their own."""
    return {
        "its folder": ("model.onnx", "-o", f"{folder}"),
        "its folder, by links": ("link/model.onnx", "-o", "link"),
        "a folder around it": ("model.onnx", "-o", f"{folder.parent}"),
        "the default": ("inside.npu/inside.onnx",),
        "external data": ("model.onnx", "-o", "weights"),
        "external data of a body": ("model.onnx", "-o", "bodies"),
        "a file of external data": ("model.onnx", "-o", "weights/w.bin"),
        "samples by a pattern": ("model.onnx", "--calibration", "sam*/*.npz", "-o", "samples"),
        "a folder of samples": ("model.onnx", "--calibration", "samples", "-o", "samples"),
        "a machine": ("model.onnx", "--machine", "machines/m.toml", "-o", "machines"),
        "the cache over samples": ("model.onnx", "--calibration", "samples", "--calibration-cache",
            "samples/s.npz"),
    }  # fmt: skip


@pytest.mark.parametrize("case", _written_over(Path("/a/b")))
def test_no_output_replaces_or_holds_what_is_read(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "in"
    for name in ("weights/w.bin", "bodies/b.bin", "samples/s.npz", "machines/m.toml", "inside.npu/inside.onnx"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    tensors = {name: TensorProto(name=name, data_type=1, dims=[1], data_location=1) for name in ("w", "b")}
    for tensor, place in zip(tensors.values(), ("weights/w.bin", "bodies/b.bin"), strict=True):
        tensor.external_data.add(key="location", value=place)
    empty = helper.make_graph([], "else", [], [])
    body = helper.make_graph([], "then", [], [], [tensors["b"]])
    node = helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=empty)
    output = helper.make_empty_tensor_value_info("y")
    model = helper.make_model(helper.make_graph([node], "g", [], [output], [tensors["w"]]))
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "link").symlink_to(folder, target_is_directory=True)
    monkeypatch.chdir(folder)
    before = {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    model_first, *options = _grouped(_written_over(folder)[case])
    for order in ([model_first, *options], [*reversed(options), model_first]):
        asked = [each for group in order for each in group]
        assert "read" in npuc("compile", "--target", "easynpu", "--force", *asked).usage()
    assert {each: each.read_bytes() for each in folder.rglob("*") if each.is_file()} == before


def _grouped(arguments: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The model, and each option with its value."""
    return [arguments[:1], *zip(arguments[1::2], arguments[2::2], strict=True)]


def test_what_is_beside_or_behind_the_inputs_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("in/model.onnx", "in/old/x", "data/a.npz", "data/sub/notes"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    for output in ("in/old", "in/new", "data/new.npz", "in/model.onnx.npu", "model.onnx"):
        assert _refusal("in/model.onnx", "--data", "data", "-o", output) == "", output
