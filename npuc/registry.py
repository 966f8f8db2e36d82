"""The targets by name: npuc's own, each imported when it is first used, and those of installed packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from npuc.errors import ArtefactError
from npuc.text.terminal import closest

if TYPE_CHECKING:
    from npuc.target import Target

TARGETS: Mapping[str, tuple[str, str]] = {
    "easynpu": ("npuc.targets.easynpu.target", "EASYNPU"),
    "nvdla-small": ("npuc.targets.nvdla.target", "SMALL"),
    "nvdla-large": ("npuc.targets.nvdla.target", "LARGE"),
    "nvdla-full": ("npuc.targets.nvdla.target", "FULL"),
    "bm1684": ("npuc.targets.bm1684.target", "BM1684"),
}
"""Module and attribute of each target."""
GROUP = "npuc.targets"
"""The entry point group through which other packages provide targets: name = "module:attribute"."""


def target(name: str) -> Target:
    """The target of this name, npuc's own or an installed package's.

    Raises ValueError for an unknown one, ArtefactError (E507) for a package whose target cannot be imported.
    """
    if name not in TARGETS:
        return _load_target(name)
    module, attribute = TARGETS[name]
    found: Target = getattr(import_module(module), attribute)
    return found


def names() -> Sequence[str]:
    """The targets' names: npuc's own, then those of installed packages."""
    from importlib.metadata import entry_points

    others = {each.name for each in entry_points(group=GROUP)}
    return (*TARGETS, *sorted(others - TARGETS.keys()))


def _load_target(name: str) -> Target:
    from importlib.metadata import entry_points

    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        known = names()
        raise ValueError(f"there is no target '{name}'.{closest(name, known)} The targets are: {', '.join(known)}")
    try:
        loaded: Target = found[0].load()
    except (ImportError, AttributeError) as error:
        reason = f"the target '{name}' cannot be imported from {found[0].value}: {error}"
        raise ArtefactError("E507", reason, remedy="repair or remove the package that brings it") from None
    return loaded
