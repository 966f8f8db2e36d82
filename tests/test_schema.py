"""docs/program-schema.json describes every manifest that npuc writes, and nothing that it would refuse."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest

from npuc import running
from npuc.errors import NpucError
from npuc.models import MODELS
from npuc.program import MANIFEST, save
from npuc.target import Options, Request, target
from tests.compiled import compilation, program_of
from tests.onnx_models import parse

SCHEMA = json.loads((Path(__file__).resolve().parents[1] / "docs" / "program-schema.json").read_text("utf-8"))


def _manifest(name: str, folder: Path, options: Options) -> Any:
    model = folder / f"{name}.onnx"
    onnx.save(MODELS[name](), model)
    program = compilation(Request(model, target("easynpu"), options)).program
    save(program, folder / "out.npu")
    return json.loads((folder / "out.npu" / MANIFEST).read_text("utf-8"))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _manifest("digits", tmp_path_factory.mktemp("digits"), Options())


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(("name", "options"), [
    ("digits", Options()), ("digits", Options(flags={"isa": "documented"})), ("lenet", Options(machine="large")),
    ("ds_cnn", Options()), ("ds_cnn", Options(machine="large")), ("residual_awkward", Options(machine="large")),
])  # fmt: skip
def test_manifests_follow_the_schema(name: str, options: Options, tmp_path: Path) -> None:
    errors = jsonschema.Draft202012Validator(SCHEMA).iter_errors(_manifest(name, tmp_path, options))
    assert [f"{'.'.join(map(str, error.path))}: {error.message}" for error in errors] == []


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(found for each in value.values() for found in _objects(each))]
    return [found for each in value for found in _objects(each)] if isinstance(value, list) else []


def test_no_key_that_the_simulator_reads_may_be_missing(digits: Any) -> None:
    """Without a key of steps, machine, ports or the instruction table both the schema and the runner refuse."""
    read = {"steps", "machine", "inputs", "outputs", "instructions"}
    optional = {*digits["machine"], "index", "mnemonic", "start", "kind"}
    for part in read:
        for position, each in enumerate(_objects(digits[part])):
            for key in each:
                changed = copy.deepcopy(digits)
                del _objects(changed[part])[position][key]
                if _below_attributes(each, digits[part]):
                    continue
                assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(changed), (part, key)
                if key not in optional:
                    with pytest.raises(NpucError):
                        _open(changed)


def _below_attributes(each: dict[str, Any], part: Any) -> bool:
    return any(each is found.get("attrs") for found in _objects(part))


def _open(manifest: Any) -> None:
    from npuc.program import Program

    program = Program(manifest, {})
    running.program_inputs(program)
    target("easynpu").runner(program)


def test_programs_with_host_regions_follow_the_schema(tmp_path: Path) -> None:
    body = "a = Conv<pads = [1, 1, 1, 1]>(x, w)\n b = Sin(a)\n y = NonZero(b)"
    model = parse(f"g (float[1,8,6,6] x) => (int64[4,n] y) {{ {body} }}", w=(8, 8, 3, 3))
    for name in ("easynpu", "bm1684"):
        (tmp_path / name).mkdir()
        program_of(model, tmp_path / name, name)
        whole = json.loads((tmp_path / name / "out.npu" / MANIFEST).read_text("utf-8"))
        validator = jsonschema.Draft202012Validator(SCHEMA)
        assert [error.message for error in validator.iter_errors(whole)] == []
        for key in ("steps", "given_by", "inputs", "outputs", "report"):
            assert not validator.is_valid({**whole, key: None}), key
        assert not validator.is_valid({**whole, "steps": [{**whole["steps"][0], "path": "../x"}]})
