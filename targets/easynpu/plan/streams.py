"""Weight streams that take turns in the weight DTCM."""

from __future__ import annotations

from collections.abc import Hashable


class Streams:
    """The streams of which the weight DTCM still holds words. Each stream is loaded from word 0 on."""

    def __init__(self) -> None:
        self.held: dict[Hashable, tuple[int, int]] = {}
        """The words of a stream, and how many of its first words have been overwritten."""

    def load(self, stream: Hashable, words: int) -> int:
        """The number of first words of a stream that must be loaded before it runs."""
        _, needed = self.held.pop(stream, (words, words))
        lost = {key: (length, max(over, needed)) for key, (length, over) in self.held.items()}
        self.held = {key: (length, over) for key, (length, over) in lost.items() if over < length}
        self.held[stream] = words, 0
        return needed
