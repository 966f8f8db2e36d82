"""The account of a model: every node and every name of the file, and no other node, in every command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from npuc.account import Entry, account_of, nodes_named
from npuc.driver import compile_model
from npuc.models import MODELS
from npuc.onnx_files.subgraphs import nodes_in
from npuc.target import Options, Request, target
from tests.cli.process import SYNTHETIC, npuc
from tests.onnx_models import network, parse

TARGETS = ("easynpu", "nvdla-small", "bm1684")


def _unet() -> onnx.ModelProto:
    """A U-Net whose Resize is linear."""
    model = MODELS["unet_small"]()
    (resize,) = (node for node in model.graph.node if node.op_type == "Resize")
    del resize.attribute[:]
    resize.attribute.append(helper.make_attribute("mode", "linear"))
    resize.name = ""
    return model


def _transformer() -> onnx.ModelProto:
    """Two layers of a transformer, with one head."""
    layer = """n{0} = LayerNormalization(h{0}, g, b) q{0} = MatMul(n{0}, w) k{0} = MatMul(n{0}, v)
        t{0} = Transpose <perm = [0, 2, 1]> (k{0}) s{0} = MatMul(q{0}, t{0}) p{0} = Softmax(s{0})
        a{0} = MatMul(p{0}, k{0}) o{0} = MatMul(a{0}, w) r{0} = Add(h{0}, o{0}) f{0} = MatMul(r{0}, v)
        u{0} = Relu(f{0}) d{0} = MatMul(u{0}, w) h{1} = Add(r{0}, d{0})"""
    text = f"g (float[1,8,16] h0) => (float[1,8,16] h2) {{ {layer.format(0, 1)} {layer.format(1, 2)} }}"
    return parse(text, g=(16,), b=(16,), w=(16, 16), v=(16, 16))


NETWORKS = {
    "unet": _unet,
    "transformer": _transformer,
    "resnet8": MODELS["resnet8"],
    "bc_resnet": MODELS["bc_resnet"],
}


def _names(model: onnx.ModelProto) -> list[str]:
    """The nodes' names: their own, or operator and number."""
    return [node.name or f"{node.op_type}_{at}" for at, node in enumerate(model.graph.node)]


def _told(value: Any, key: str = "") -> Iterator[str]:
    """The names of nodes in a report."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _told(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _told(each, key)
    elif key in ("node", "nodes", "into") and isinstance(value, str):
        yield value


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("machine", ["easynpu", "nvdla-small"])
def test_commands_name_only_nodes_that_the_model_has(network: str, machine: str, tmp_path: Path) -> None:
    model = NETWORKS[network]()
    onnx.save(model, tmp_path / "m.onnx")
    names = _names(model)
    options = ("--target", machine, "-O0", "--proof", "off")
    found = [
        npuc("compile", *SYNTHETIC, tmp_path / "m.onnx", *options, "-o", tmp_path / "a", "--json").json,
        npuc(
            "compile", *SYNTHETIC, tmp_path / "m.onnx", *options, "-o", tmp_path / "b", "--deny", "Relu", "--json"
        ).json,
        npuc("check", tmp_path / "m.onnx", "--target", machine, "--json").json,
        npuc("diff", tmp_path / "a", tmp_path / "b", "--json").json,
        *(npuc("explain", tmp_path / "a", name, "--json").json for name in names[:: len(names) // 5]),
    ]
    assert [each["node"] for each in found[0]["account"]] == names
    assert {*_told(found)} <= {*names}
    texts = npuc("check", tmp_path / "m.onnx", "--target", machine, "-v").done()
    quoted = {name for line in texts.splitlines() if line.startswith("  host: ") for name in _quoted(line)}
    assert quoted <= {*names}
    screen = npuc("check", tmp_path / "m.onnx", "--target", machine).done()
    assert len(screen.splitlines()) <= 25
    npuc("report", tmp_path / "a", "-o", tmp_path / "r.html").done()
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    told = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert [each["name"] for each in told["nodes"]] == names
    drawn = re.findall(r'data-node="([^"]*)"', page)
    folded = {each["node"] for each in found[0]["account"] if each["place"] == "folded"}
    assert sorted(drawn) == sorted({*names} - folded)


def _quoted(line: str) -> list[str]:
    """The names of nodes in a line on the host's nodes: what is quoted before the reason."""
    return re.findall(r"'([^']*)'", re.split(r" \(|: ", line.removeprefix("  host: "))[0])


@pytest.mark.parametrize("network", NETWORKS)
def test_costs_of_nodes_add_up_to_the_program(network: str, tmp_path: Path) -> None:
    onnx.save(NETWORKS[network](), tmp_path / "m.onnx")
    program, _ = compile_model(Request(tmp_path / "m.onnx", target("easynpu"), Options(level="0", proof="off")))
    entries, report = account_of(program.manifest), program.manifest["report"]
    assert sum(each.cycles for each in entries) == pytest.approx(sum(each["cycles"] for each in report["layers"]))
    assert sum(each.macs for each in entries) == report["macs"]
    assert sum(each.macs_on_npu for each in entries) == pytest.approx(report["npu_macs_share"] * report["macs"])


def _every_kind() -> onnx.ModelProto:
    """Folded constants, an identity, a call, a constant If, a dead node, and names that collide."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.2, (8, 8, 3, 3)) for name in ("w", "v")}
    call = helper.make_function(
        "own", "Block", ["p"], ["q"],
        [helper.make_node("Neg", ["p"], ["t"], "inner"), helper.make_node("Relu", ["t"], ["q"])],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    branch = helper.make_graph([helper.make_node("Relu", ["c"], ["r"], "branch")], "b", [], [_value("r")])
    nodes = [
        helper.make_node("Neg", ["w"], ["n"], "negated"),
        helper.make_node("Conv", ["x", "n"], ["a"], "Conv_3", pads=[1] * 4),
        helper.make_node("Identity", ["a"], ["i"], "same"),
        helper.make_node("Conv", ["i", "v"], ["b"], pads=[1] * 4),  # Conv_3 is another node's name
        helper.make_node("Block", ["b"], ["c"], "call", domain="own"),
        helper.make_node("If", ["yes"], ["d"], "choice", then_branch=branch, else_branch=branch),
        helper.make_node("Exp", ["b"], ["e"], "dead"),
        helper.make_node("Sin", ["d"], ["f"], "sine"),
        helper.make_node("Conv", ["f", "v"], ["y"], "last", pads=[1] * 4),
    ]
    shape = [each.dim_value for each in _value("x").type.tensor_type.shape.dim]
    return network(nodes, shape, {**weights, "yes": True}, functions=[call], own=1)


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8, 6, 6])


@pytest.fixture(scope="module", params=TARGETS)
def entries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Entry, ...]:
    """The account of a model with every kind of node."""
    path = tmp_path_factory.mktemp("account") / "m.onnx"
    onnx.save(_every_kind(), path)
    program, _ = compile_model(Request(path, target(request.param), Options(level="0", proof="off")))
    return account_of(program.manifest)


def test_every_node_has_an_entry_with_its_place(entries: tuple[Entry, ...]) -> None:
    assert [(each.node, each.op, each.place) for each in entries] == [
        ("negated", "Neg", "folded"), ("Conv_3", "Conv", "npu"), ("same", "Identity", "removed"),
        ("Conv_3_2", "Conv", "npu"), ("call", "Block", "npu"), ("choice", "If", "npu"), ("dead", "Exp", "removed"),
        ("sine", "Sin", "host"), ("last", "Conv", "npu"),
    ]  # fmt: skip
    by_node = {each.node: each for each in entries}
    assert [each.code for each in by_node["sine"].problems] == ["E201"] and by_node["sine"].problems[0].remedy
    assert by_node["sine"].bytes_in == by_node["sine"].bytes_out > 0
    assert all(each.layers for each in entries if each.op == "Conv")
    assert [each.macs for each in entries if each.op == "Conv"] == [36 * 8 * 9 * 8] * 3
    assert by_node["same"].tensors["i"] == by_node["Conv_3"].tensors["a"] != ""


def test_every_name_of_the_model_leads_to_its_node(entries: tuple[Entry, ...]) -> None:
    model = _every_kind()
    for node, entry in zip(model.graph.node, entries, strict=True):
        for name in filter(None, (node.name, *node.output)):
            assert nodes_named(entries, name, {}, ()) == {entry.node}
        for inner in list(nodes_in([node]))[1:]:
            assert nodes_named(entries, inner.name, {}, ()) == {entry.node}
    for name in ("x", "w", "v", "yes", "inner", "branch", "t", "r"):
        assert nodes_named(entries, name, {}, ())
    assert nodes_named(entries, "w", {}, ()) == {"negated"}
    assert nodes_named(entries, "inner", {}, ()) == {"call"}
