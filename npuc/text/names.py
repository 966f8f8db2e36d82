"""Unique names."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """The set of names in use."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._made: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        """The last number behind a stem: all smaller ones are taken."""

    def taken(self) -> frozenset[str]:
        """All names in use."""
        return frozenset(self._taken)

    def take(self, names: Iterable[str]) -> None:
        """Marks names as used."""
        self._taken.update(names)

    def of(self, stem: str) -> str:
        """The new unique name for a stem: always the same one for the same stem."""
        if stem not in self._made:
            self._made[stem] = self.new(stem)
        return self._made[stem]

    def new(self, stem: str) -> str:
        """A new unique name, which then counts as used: the stem, or the stem with a number.

        >>> names = Names(["conv"])
        >>> names.new("conv"), names.new("conv"), names.new("relu")
        ('conv_2', 'conv_3', 'relu')
        """
        name, count = stem, self._counts.get(stem, 1)
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._counts[stem] = count
        self._taken.add(name)
        return name
