"""Term and vote on disk: `currterm` in DLedger's form, and `hardstate` with a CRC beside it (SAFETY E2).

Invariants: both are replaced whole and durable before `save` returns; a state that cannot be read is never taken for
term 0; where the two files disagree the higher term counts and no vote is granted in it. Space for one replacement is
kept in `reserve`: on a full disk a member still votes, and its engine does not end over every election (S8).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from node.protocol.codes import FlushMode, VoterState
from node.protocol.entry import POSITION_MAX, TERM_LEAP_MAX, TERM_MAX
from node.protocol.group_settings import GroupSettings, KeptSettings, Promises
from node.store.errors import StoreFull, StoreIOError, StoreRefused, is_unreadable
from node.store.files.os_files import (
    pack_sealed_json,
    read_sealed_json,
    read_small,
    replace_file,
    sync_directory,
    write_synced,
)
from node.store.files.platform import OS, Platform
from node.store.log_store import HardState

CURRTERM = "currterm"
_TERM_DIGITS = 19
HARDSTATE = "hardstate"
RESERVE = "reserve"
LIVES_KEPT = 64
_RESERVE = b"space for term and vote on a full disk\n".ljust(16 * 1024, b".")
_HOW_TO_SET_IT = "this store has entries, so its term is not guessed: `quorumscope store repair DIR --set-term N`"


def format_currterm(term: int, voted_for: str | None) -> bytes:
    """DLedger's two lines (FORMATS 3)."""
    return f"voteLeader={voted_for or ''}\ncurrTerm={term}\n".encode()


def parse_currterm(data: bytes) -> tuple[int, str | None] | None:
    """Term and vote from DLedger's properties text, in any order; None where it says no term."""
    values: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        name, separator, value = line.partition("=")
        if separator:
            values[name.strip()] = value.strip()
    term = values.get("currTerm", "")
    if not (term.isascii() and term.isdigit() and len(term) <= _TERM_DIGITS and int(term) <= TERM_MAX):
        return None
    return int(term), values.get("voteLeader") or None


def read_currterm(directory: Path, platform: Platform = OS) -> tuple[int, str | None] | None:
    """None where the file is missing, says nothing, or the disk cannot read it. Raises StoreIOError."""
    try:
        return parse_currterm(read_small(directory / CURRTERM, platform))
    except (FileNotFoundError, StoreRefused):
        return None
    except OSError as error:
        if is_unreadable(error):
            return None
        raise StoreIOError(f"reading {directory / CURRTERM}: {error.strerror}") from error


def hard_state_to_json(state: HardState) -> dict[str, Any]:
    """What `hardstate` holds."""
    return {
        "term": state.term,
        "voted_for": state.voted_for,
        "voter_state": state.voter_state.value,
        "vote_floor": state.vote_floor,
        "store_ids": state.store_ids,
        "life_ids": list(state.life_ids),
        "peer_lives": state.peer_lives,
        "store_id": state.store_id,
        "group_id": state.group_id,
        "marks_from": state.marks_from,
        "naming": None if state.naming is None else list(state.naming),
        "configurations": [list(one) for one in state.configurations],
        "kept": None if state.kept is None else [list(part) for part in state.kept],
        "owner": state.owner,
        "founders": list(state.founders),
        **({} if state.replaced_id is None else {"replaced_id": state.replaced_id}),
    }


def hard_state_from_json(value: dict[str, Any]) -> HardState:
    """The reverse of `hard_state_to_json`; raises ValueError and its like for anything else."""
    term, voted_for, floor = value["term"], value["voted_for"], value["vote_floor"]
    if (
        type(term) is not int
        or type(floor) is not int
        or not (0 <= term <= POSITION_MAX and -1 <= floor <= POSITION_MAX)
    ):
        raise ValueError(f"term {term!r}, vote floor {floor!r}")
    if voted_for is not None and not isinstance(voted_for, str):
        raise ValueError(f"a vote for {voted_for!r}")
    store_ids = {str(peer): str(store) for peer, store in value["store_ids"].items()}
    peer_lives = {str(peer): str(life) for peer, life in value.get("peer_lives", {}).items()}
    life_ids = value.get("life_ids", [])
    if not isinstance(life_ids, list) or not all(isinstance(one, str) for one in life_ids):
        raise ValueError(f"lives {life_ids!r}")
    store_id, group_id, owner = value.get("store_id"), value.get("group_id"), value.get("owner")
    replaced_id = value.get("replaced_id")
    if not all(one is None or isinstance(one, str) for one in (store_id, group_id, owner, replaced_id)):
        raise ValueError(f"store {store_id!r}, group {group_id!r}, owner {owner!r}, replaced {replaced_id!r}")
    marks_from = value.get("marks_from", -1)
    if type(marks_from) is not int:
        raise ValueError(f"marks from {marks_from!r}")
    naming = value.get("naming")
    if naming is not None and (len(naming) != 2 or type(naming[0]) is not int or not isinstance(naming[1], str)):
        raise ValueError(f"naming {naming!r}")
    configurations = tuple((index, body) for index, body in value.get("configurations", []))
    if not all(type(index) is int and isinstance(body, str) for index, body in configurations):
        raise ValueError(f"configurations {configurations!r}")
    founders = tuple(value.get("founders", []))
    if not all(isinstance(one, str) for one in founders):
        raise ValueError(f"founders {founders!r}")
    kept = tuple(life_ids[-LIVES_KEPT:])
    voter_state = VoterState(value["voter_state"])
    return HardState(
        term, voted_for, voter_state, floor, store_ids, kept, peer_lives, store_id, group_id, marks_from,
        None if naming is None else (naming[0], naming[1]), configurations, _kept_from_json(value.get("kept")),
        owner, founders, replaced_id,
    )  # fmt: skip


def _kept_from_json(value: Any) -> KeptSettings | None:
    """Raises ValueError and its like."""
    if value is None:
        return None
    (flush, lease_reads, election_min_ms), (lease_ms, unsynced) = value
    if not (type(election_min_ms) is type(lease_ms) is int and type(lease_reads) is type(unsynced) is bool):
        raise ValueError(f"kept settings {value!r}")
    agreed = GroupSettings(FlushMode(flush), lease_reads, election_min_ms)
    return KeptSettings(agreed, Promises(lease_ms, unsynced))


def with_new_life(state: HardState, life_id: str) -> HardState:
    """The state of a store that is opened for serving once more (SAFETY E8)."""
    return replace(state, life_ids=(*state.life_ids, life_id)[-LIVES_KEPT:])


def save_hard_state(directory: Path, state: HardState, platform: Platform = OS) -> None:
    """Durable on return. Raises StoreIOError, also without any space: a vote that is not kept ends the engine."""
    try:
        _replace_both(directory, state, platform)
    except StoreFull:
        platform.unlink(directory / RESERVE)
        try:
            _replace_both(directory, state, platform)
        except StoreFull as error:
            raise StoreIOError(f"term and vote cannot be made durable: {error}") from error
    sync_directory(directory, platform)
    keep_reserve(directory, platform)


def _replace_both(directory: Path, state: HardState, platform: Platform) -> None:
    sealed = pack_sealed_json(hard_state_to_json(state))
    replace_file(directory / HARDSTATE, sealed, sync_name=False, platform=platform)
    heritage = format_currterm(state.term, state.voted_for)
    replace_file(directory / CURRTERM, heritage, sync_name=False, platform=platform)


def with_reserve(directory: Path, write: Callable[[], None], platform: Platform) -> None:
    """Writes a small file that makes room on a full disk, with the space that is kept for that. Raises StoreFull."""
    try:
        write()
    except StoreFull:
        platform.unlink(directory / RESERVE)
        write()


def keep_reserve(directory: Path, platform: Platform) -> None:
    """Takes the space again: what the replaced files held is free by now. Without it the next save tries again."""
    path = directory / RESERVE
    if not platform.exists(path):
        try:
            write_synced(path, _RESERVE, platform)
        except StoreFull:
            platform.unlink(path)


def read_hard_state(directory: Path, platform: Platform = OS) -> HardState | None:
    """What `hardstate` alone says; None where it is missing or cannot be read."""
    try:
        value = read_sealed_json(directory / HARDSTATE, platform)
        return None if value is None else hard_state_from_json(value)
    except (StoreRefused, KeyError, TypeError, ValueError, AttributeError):
        return None


def load_hard_state(
    directory: Path, *, has_entries: bool, platform: Platform = OS, node_id: str | None = None
) -> HardState | None:
    """The stored state; None where there never was one (only possible without entries). Raises StoreRefused, also for
    one that was copied from another member than `node_id`: with its vote this one could vote twice in a term."""
    try:
        value = read_sealed_json(directory / HARDSTATE, platform)
    except StoreRefused as error:
        raise StoreRefused(f"{error}; {_HOW_TO_SET_IT}") from error
    if value is None:
        if has_entries or read_currterm(directory, platform) is not None:
            raise StoreRefused(f"{directory / HARDSTATE} is missing; {_HOW_TO_SET_IT}")
        return None
    try:
        state = hard_state_from_json(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreRefused(f"{directory / HARDSTATE} is of another format ({error!r}); {_HOW_TO_SET_IT}") from error
    if None not in (node_id, state.owner) and state.owner != node_id:
        raise StoreRefused(f"{directory / HARDSTATE} is that of {state.owner}, copied to {node_id}; {_HOW_TO_SET_IT}")
    java = read_currterm(directory, platform)
    if java == (state.term, state.voted_for):
        return state
    if java is not None and java[0] > state.term + TERM_LEAP_MAX:  # it has no CRC, and nobody gets there by elections
        raise StoreRefused(
            f"{directory / CURRTERM} says term {java[0]}, {HARDSTATE} {state.term}: that cannot be (E10);"
            f" `quorumscope store repair {directory}` says what settles it"
        )
    term = max(state.term, java[0]) if java is not None else state.term
    return replace(state, term=term, voted_for=None, vote_floor=max(state.vote_floor, term))


def adopt_currterm(directory: Path, *, has_entries: bool, platform: Platform = OS) -> HardState:
    """The state of a directory that only the Java node wrote: its term, and no vote in it. Raises StoreRefused."""
    java = read_currterm(directory, platform)
    if java is None:
        if has_entries:
            how = (
                "this store has entries, so its term is not guessed: `quorumscope store repair DIR` says how to give it"
            )
            raise StoreRefused(f"{directory / CURRTERM} is missing or says no term; {how}")
        return HardState(voter_state=VoterState.REJOINING)
    return HardState(java[0], None, VoterState.VOTER, vote_floor=java[0])


def term_leap(directory: Path, end_term: int, platform: Platform = OS) -> str | None:
    """What is wrong where a stored term is further from the log's, or the other file's, than elections lead (E10)."""
    state = read_hard_state(directory, platform)
    java = read_currterm(directory, platform)
    if state is None:
        return None
    if java is not None and java[0] > state.term + TERM_LEAP_MAX:
        return f"{CURRTERM} says term {java[0]}, {HARDSTATE} {state.term}"
    if abs(state.term - max(end_term, 0)) > TERM_LEAP_MAX:
        return f"{HARDSTATE} says term {state.term}, the log ends in term {end_term}"
    return None
