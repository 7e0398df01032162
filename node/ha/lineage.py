"""Whose history a log is: `DATA/quorumscope/ha`, an id of the pair and the epochs in which masters wrote.

Every time a broker becomes master, an epoch begins at its log's end; a slave takes its master's list over. So a slave
that heard of a later epoch fences an old master that returns, and a log of another pair is not taken for a late one.
`heard`: the epoch of a promotion that this broker was asked about. It follows no older master from then on, though its
log has nothing of that epoch yet.

Invariants: written before the first put of an epoch is taken; epochs only grow, and so do their starts; the oldest go
when there are more than a thousand; what a peer says moves a broker of a pair by `EPOCHS_AHEAD_MAX` at most, as SAFETY
E10 bounds terms (a pair has no majority that could be asked).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from node.message_store.dispatch_mark import OURS
from node.message_store.errors import MessageStoreError
from node.message_store.read_files import OS, Files
from node.message_store.write_files import Disk
from node.protocol.entry import crc32
from node.protocol.value_class import value_class

NAME: Final = "ha"
EPOCHS_MAX: Final = 1000
PROMOTION: Final = 1 << 20
EPOCH_MAX: Final = (1 << 53) - 1  # the largest whole number of every reader of JSON
EPOCHS_AHEAD_MAX: Final = 1024 * PROMOTION  # of what a peer of the same pair says, above the own newest
OFFSET_MAX: Final = (1 << 63) - 1
ID_LETTERS_MAX: Final = 64
_BYTES_MAX: Final = 256 << 10


@value_class(slots=True, frozen=True)
class Lineage:
    """`pair` empty: not known (a log of RocketMQ's, or a new one). `epochs`: (number, start) ascending."""

    pair: str = ""
    epochs: tuple[tuple[int, int], ...] = ()
    heard: int = 0

    @property
    def epoch(self) -> int:
        """The newest of the log; 0: none."""
        return self.epochs[-1][0] if self.epochs else 0

    @property
    def newest(self) -> int:
        """That this broker heard of."""
        return max(self.epoch, self.heard)

    def hearing(self, epoch: int) -> Lineage:
        """With a promotion that was heard of."""
        return self if epoch <= self.newest else replace(self, heard=epoch)

    def too_far(self, theirs: Lineage) -> str:
        """Why what a peer says of epochs is not believed; empty: it is. Of no pair yet, any master's is."""
        if not self.pair or theirs.pair != self.pair or theirs.newest - self.newest <= EPOCHS_AHEAD_MAX:
            return ""
        return (
            f"epoch {theirs.newest} is more than {EPOCHS_AHEAD_MAX} above {self.newest}, the newest here, and is not"
            " believed: find out which broker of the pair is wrong, stop it, and start it with an empty directory"
        )

    def promoted_above(self, above: int) -> int:
        """The epoch that a promotion begins, where `above` is the newest that is known of the pair.

        Raises MessageStoreError: there is none.
        """
        return _an_epoch((max(self.epoch, above) // PROMOTION + 1) * PROMOTION)

    def begun(self, pair: str, start: int, *, is_promoted: bool = False, above: int = 0) -> Lineage:
        """With an epoch more, from `start` on: the next one for a master that starts again, a much later one for a
        slave that is promoted, so that the old master is of an older one however often it starts. `above`: the newest
        epoch that is known of the pair, which a slave need not have heard of.

        Raises MessageStoreError: there is none."""
        number = self.promoted_above(above) if is_promoted else _an_epoch(max(self.epoch, above) + 1)
        return Lineage(self.pair or pair, (*self.below(start).epochs, (number, start))[-EPOCHS_MAX:])

    def below(self, end: int) -> Lineage:
        """What is true of a log that ends at `end`; each number stays."""
        return replace(self, epochs=tuple((number, min(start, end)) for number, start in self.epochs))

    def cut(self, end: int) -> Lineage:
        """What is true of a log that is cut back to `end`: of an epoch that began there or behind it nothing is left,
        and another master may have begun one of the same number elsewhere. The newest number stays known."""
        return replace(self, epochs=tuple(one for one in self.epochs if one[1] < end), heard=self.newest)

    def goes_on_from(self, theirs: Lineage, end: int) -> bool:
        """Whether a log of these epochs goes on from one of theirs that ends there: no later epoch began below."""
        is_known = theirs.pair == self.pair and bool(theirs.epochs) and theirs.epochs[-1] in self.epochs
        return is_known and all(start >= end for number, start in self.epochs if number > theirs.epoch)

    def to_json(self) -> dict[str, Any]:
        said = {"pair": self.pair, "epochs": [list(one) for one in self.epochs]}
        return said | {"heard": self.heard} if self.heard > self.epoch else said


def _an_epoch(number: int) -> int:
    """Raises MessageStoreError."""
    if number > EPOCH_MAX:
        raise MessageStoreError(
            f"there is no epoch above {EPOCH_MAX}: stop the pair, remove {OURS}/{NAME} at its master, empty its slaves"
        )
    return number


def parse_lineage(said: object) -> Lineage:
    """Raises ValueError."""
    if not isinstance(said, dict):
        raise ValueError("no object")
    pair, epochs, heard = said.get("pair"), said.get("epochs"), said.get("heard", 0)
    if not isinstance(pair, str) or len(pair) > ID_LETTERS_MAX or not isinstance(epochs, list):
        raise ValueError("the pair's name or its epochs are missing")
    if type(heard) is not int or not 0 <= heard <= EPOCH_MAX:
        raise ValueError(f"no epoch: {_short(heard)}")
    found: list[tuple[int, int]] = []
    for one in epochs[: EPOCHS_MAX + 1]:
        if not (isinstance(one, list) and len(one) == 2 and all(type(part) is int for part in one)):
            raise ValueError(f"no epoch: {_short(one)}")
        if not (0 <= one[0] <= EPOCH_MAX and 0 <= one[1] <= OFFSET_MAX):
            raise ValueError(f"no epoch: {_short(one)}")
        if found and (one[0] <= found[-1][0] or one[1] < found[-1][1]):
            raise ValueError(f"epoch {one} behind {found[-1]}")
        found.append((one[0], one[1]))
    if len(found) > EPOCHS_MAX:
        raise ValueError(f"more than {EPOCHS_MAX} epochs")
    return Lineage(pair, tuple(found), heard)


def _short(said: object) -> str:
    return repr(said)[:60]


def lineage_path(root: Path) -> Path:
    return root / OURS / NAME


def write_lineage(root: Path, lineage: Lineage, disk: Disk) -> None:
    said = json.dumps(lineage.to_json(), separators=(",", ":"))
    disk.replace(lineage_path(root), f"{crc32(said.encode()):08x} {said}\n".encode())


def read_lineage(root: Path, files: Files = OS) -> Lineage:
    """An empty one where there is none. Raises MessageStoreError."""
    path = lineage_path(root)
    if files.size(path) is None:
        return Lineage()
    crc, _space, said = files.read(path, 0, _BYTES_MAX).partition(b" ")
    try:
        if int(crc, 16) != crc32(said.rstrip(b"\n")):
            raise ValueError("its CRC does not agree")
        return parse_lineage(json.loads(said))
    except (ValueError, RecursionError) as error:
        raise MessageStoreError(
            f"{path} cannot be read ({error}): on a slave remove it and the log, it gets everything from its master;"
            " on a master restore it from its slave's"
        ) from error
