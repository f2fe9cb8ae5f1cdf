"""Answers from a closed list, or made of allowed words only: a tree of token sequences says what may come next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Node:
    """A place in the tree: what may follow, and whether a sequence ends here."""

    __slots__ = ("ends", "next")

    def __init__(self) -> None:
        self.next: dict[int, Node] = {}
        self.ends = False


class Tree:
    """Token sequences that share their beginnings; with `again` one may follow upon the other."""

    def __init__(self, sequences: Iterable[Sequence[int]], again: bool = False) -> None:
        self.root, self.again = Node(), again
        for sequence in sequences:
            node = self.root
            for token in sequence:
                node = node.next.setdefault(token, Node())
            node.ends = True

    def after(self, generated: Sequence[int]) -> tuple[set[int], bool]:
        """Which tokens may follow what was generated, and whether it may end there."""
        # One run of tokens may be read in several ways: `a b` or `ab`, begun or done.
        places = [self.root]
        for token in generated:
            places = self._open([place.next[token] for place in places if token in place.next])
        done = any(place.ends or (self.again and place is self.root) for place in places)
        return {token for place in places for token in place.next}, done

    def _open(self, places: list[Node]) -> list[Node]:
        if self.again and any(place.ends for place in places):
            places = [*places, self.root]
        return places
