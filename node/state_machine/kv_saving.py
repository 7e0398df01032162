"""A save of the key-value store in steps: its pieces are made between commands, and are of the state at its beginning.

Keys are written in their order. Whatever changes a key that is not written yet says so first, and what the key held at
the beginning is kept until its turn comes. So nothing is copied but what changes meanwhile, and no step takes longer
than `STEP_ITEMS` and `STEP_BYTES` allow.

Invariants: the pieces together are what a save at once at the beginning would have written, whatever is applied
between them; a key is written once, or not at all where it was not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Final

from node.protocol.kv import encode_item
from node.state_machine.sorted_keys import SortedKeys

STEP_ITEMS: Final = 512
STEP_BYTES: Final = 256 * 1024  # a step ends with the item that goes over it

Held = tuple[bytes, bytes, int, int]  # key, value, the entry that wrote it, until when it stays


class Saving:
    """See the module's docstring. `items` and `keys` are the store's own, and go on changing."""

    def __init__(self, items: dict[bytes, Held], keys: SortedKeys) -> None:
        self._items, self._keys = items, keys
        self._upto: bytes | None = None  # the last key that was written; None: none
        self._before: dict[bytes, Held | None] = {}  # what keys behind it held, where that has changed
        self._gone = SortedKeys()  # those of them that were there, and were removed: `keys` need not have them any more
        self._ever_gone: set[bytes] = set()  # the same

    def changes(self, key: bytes, held: Held | None) -> None:
        """That key is about to hold something else."""
        if (self._upto is None or key > self._upto) and key not in self._before:
            self._before[key] = held

    def all_change(self, keys: Iterable[bytes]) -> None:
        """The same of many, which hold until now what the store says."""
        upto, before, items = self._upto or b"", self._before, self._items
        for key in keys:
            if key > upto and key not in before:
                before[key] = items.get(key)

    def removed(self, key: bytes, held: Held) -> None:
        """That key held this, and is not there any more."""
        self.changes(key, held)
        if self._before.get(key) is not None and key not in self._ever_gone:
            self._ever_gone.add(key)
            self._gone.add(key)

    def pieces(self) -> Iterator[bytes]:
        """Between two of them anything may happen to the store."""
        is_last = False
        while not is_last:
            piece, is_last = self._step()
            yield piece

    def _step(self) -> tuple[bytes, bool]:
        """The next items, perhaps none, and whether they are the last ones."""
        begin = b"" if self._upto is None else self._upto + b"\0"
        found: list[bytes] = []
        size_bytes = 0
        items, before = self._items, self._before
        keys = self._keys.from_key(begin)
        for number, key in enumerate(merge(keys, self._gone.from_key(begin)) if self._ever_gone else keys):
            if number >= STEP_ITEMS or size_bytes > STEP_BYTES:
                return b"".join(found), False
            if key == self._upto:
                continue  # it is among both
            self._upto = key
            held = before.pop(key) if key in before else items[key]
            if held is None:
                continue  # it came later
            found.append(encode_item(*held))
            size_bytes += len(found[-1])
        return b"".join(found), True
