"""The shipped machines, by the document and by what is known of the author's RTL."""

from __future__ import annotations

from dataclasses import replace

import pytest

from npuc.target import target
from npuc.targets.easynpu.machine.parameters import Machine, load, names


def test_the_documents_machine_has_the_texts_sizes() -> None:
    """Chapters Scratch Pad, PE and Storage: 20 KB + 20 KB + 24 KB in words of 128 bits."""
    machine = load("document")
    assert (machine.ifmap_pad_sets, machine.ifmap_pad_entries, machine.weight_pad_entries) == (1, 64, 16)
    assert machine.psum_entries == 1 << 6
    sizes = (machine.fmap_words, machine.skip_words, machine.weight_words)
    assert [16 * words for words in sizes] == [20 << 10, 20 << 10, 24 << 10]
    assert replace(machine, name="default", ifmap_pad_sets=2) == Machine()


def test_the_authors_machine_has_the_sizes_of_his_rtl() -> None:
    """Reference, sections 1 and 3: NPUConfig, psum file, bias and scale pads."""
    machine = load("author")
    assert (machine.fmap_words, machine.weight_words) == (400, 256)
    assert (machine.psum_entries, machine.parameter_pad_entries) == (128, 16)
    assert (machine.ifmap_pad_sets, machine.ifmap_pad_entries, machine.weight_pad_entries) == (1, 64, 16)


@pytest.mark.parametrize("name", names())
def test_a_machine_is_read_back_from_its_manifest(name: str) -> None:
    machine = load(name)
    assert Machine.of(machine.as_dict(), "manifest.json") == machine


def test_manifests_of_before_have_two_sets_of_pads_and_those_of_two_sets_do_not_change() -> None:
    assert not {"ifmap_pad_sets", "overlap"} & Machine().as_dict().keys()
    assert replace(Machine(), ifmap_pad_sets=1).as_dict()["ifmap_pad_sets"] == 1


def test_a_sweep_can_vary_every_parameter() -> None:
    """Also one that the default machine's manifest does not say."""
    for name in ("default", "document"):
        values = target("easynpu").machine_values(name)
        assert Machine(**values) == load(name)
        assert "ifmap_pad_sets" in values
