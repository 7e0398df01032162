"""What the page of a classic pair draws: a waterline of offsets, connections, whom sends wait for, both ends' files.

The waterline is the groups' (`app/console/waterline.py`) in bytes: the master's end is 0, and each slave is where the
master says that it acknowledged, so that all marks are of one instant. Invariants: nothing unknown is drawn as a mark;
what RocketMQ's protocol does not vouch for is drawn as held, not vouched for; a broker that does not answer keeps what
it said last, greyed, with the time of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.console import format as fmt
from app.console.troubles import Trouble
from app.console.waterline import TICKS, UNITS, ZERO_X, Bar, Lane, Scale, Tick, piece
from app.health.group_view import GroupView, MemberView, Problem
from app.health.pair_links import connection_of, ha_of, hangs, master_of, unchecked_of
from app.health.pairs import SERVED, stopped_by
from node.views.ha import HaConnection, HaView, HaWaiting

STANDS: Final = {
    "in_step": "in step", "behind": "behind", "empty": "empty", "ahead": "ahead",
    "forked": "forked", "stranger": "of another pair", "refused": "refused",
}  # fmt: skip
SYNC_FLUSH: Final = "SYNC_FLUSH"
LONG_MS: Final = 100
STATES: Final = {"new": "connecting", "asked": "says what it has", "judged": "not served", "transfer": "served"}


@dataclass(frozen=True, slots=True)
class PairPicture:
    """`enough_x`: what lies left of it is on as many slaves as puts wait for."""

    ticks: list[Tick]
    lanes: list[Lane]
    end_text: str
    enough_x: float | None
    enough_text: str


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """One broker in words; `tone`: a class."""

    id: str
    role: str
    is_master: bool
    tone: str
    takes: str
    epoch: str
    begin: str
    flushed: str
    end: str
    dispatched: str
    files: str
    flush: str
    clients: str
    slaves: str


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    slave: str
    address: str
    state: str
    tone: str
    stand: str
    sent: str
    acked: str
    lag_bytes: str
    lag: str
    rate: str
    heard: str
    reason: str


def picture_of(view: GroupView) -> PairPicture:
    """GroupView of a pair -> geometry."""
    master = master_of(view)
    scale = Scale("bytes", 1.0)
    ticks = [
        Tick(round(ZERO_X * (1 - number / UNITS["bytes"]), 3), label, number % 3 != 0)
        for number, label in enumerate(TICKS["bytes"], start=1)
        if label
    ]
    known = [said for one in view.members if (said := last_of(one)) is not None]
    ends = [one.end_offset for one in known if one.end_offset is not None]
    end = master[1].end_offset if master is not None else max(ends, default=None)
    begins = [one.begin_offset for one in known if one.begin_offset is not None]
    whole = (min(begins, default=0), max([*ends, end or 0]))
    enough = enough_of(master[1]) if master is not None else None
    lanes = [_lane(view, one, master[1] if master else None, end, scale, whole) for one in view.members]
    if master is not None:
        watched = {one.id for one in view.members}
        lanes += [
            _stranger(one, master[1], scale, whole) for one in master[1].connections or () if one.peer_id not in watched
        ]
    enough_x = None if enough is None or end is None else scale.x(max(0, end - enough))
    return PairPicture(ticks, lanes, fmt.index(end), enough_x, fmt.index(enough))


def enough_of(master: HaView) -> int | None:
    """Up to where as many slaves acknowledged as a put of a SYNC_MASTER waits for; None: too few say so."""
    acks = sorted((one.acked_offset for one in master.connections or () if one.acked_offset is not None), reverse=True)
    needed = (master.in_sync_replicas or 1) - 1
    return acks[needed - 1] if 0 < needed <= len(acks) else None


def _lane(
    view: GroupView, one: MemberView, master: HaView | None, end: int | None, scale: Scale, whole: tuple[int, int]
) -> Lane:
    said = last_of(one)
    is_master = master is not None and one.id == master.self_id
    link = connection_of(master, one.id) if master is not None and not is_master else None
    own = None if said is None else said.end_offset
    has = end if is_master else link.acked_offset if link is not None and link.acked_offset is not None else own
    lag = None if has is None or end is None else end - has
    drawn = Lane(
        id=one.id, role=role_of(said), role_class="leader" if is_master else "",
        reach=one.reach if said is one.ha else "stale",
        sub=_subtitle(one, link, is_master), sub_class="" if is_master or _is_served(link) else "attention-text",
        end_text=fmt.index(has), behind_text="—" if is_master else _behind(lag),
        bytes_text="—" if link is None else fmt.duration_ms(link.lag_ms),
        ack_text="—" if link is None else rate_of(link.rate_bytes_per_s), never=has is None,
        trouble=_trouble([each for each in view.problems if each.node_id == one.id]),
    )  # fmt: skip
    begin = said.begin_offset if said is not None else None
    flushed = _flushed(said, link, has)
    if has is not None and end is not None:
        _draw(drawn, begin, has, flushed, end, scale, whole, is_vouched=link is None or link.kind == "ours")
    return drawn


def last_of(one: MemberView) -> HaView | None:
    """What its broker said last; where it never said anything, what its control plane says of it."""
    return one.ha if one.ha is None or one.ha.broker == "ok" or one.ha_before is None else one.ha_before


def _flushed(said: HaView | None, link: HaConnection | None, has: int | None) -> int | None:
    """Up to where it is on disk there; None: that is not known of the instant at which it stands there."""
    if said is None or has != said.end_offset:
        return None
    if link is not None and link.kind == "ours" and said.flush == SYNC_FLUSH:
        return has  # what it acknowledges is on its disk, whatever it said of that a moment before
    return said.flushed_offset


def _stranger(one: HaConnection, master: HaView, scale: Scale, whole: tuple[int, int]) -> Lane:
    """A slave that is not watched here, as its master sees it."""
    end, has = master.end_offset, one.acked_offset
    name = one.peer_id or one.address
    drawn = Lane(
        id=name, role="slave", role_class="", reach="ok",
        sub="RocketMQ's own: its log cannot be compared" if one.kind == "rocketmq" else "not watched here",
        sub_class="", end_text=fmt.index(has), behind_text=_behind(one.lag_bytes),
        bytes_text=fmt.duration_ms(one.lag_ms), ack_text=rate_of(one.rate_bytes_per_s), never=has is None,
    )  # fmt: skip
    if has is not None and end is not None:
        _draw(drawn, master.begin_offset, has, None, end, scale, whole, is_vouched=one.kind == "ours")
    return drawn


def _draw(
    drawn: Lane, begin: int | None, has: int, flushed: int | None, end: int, scale: Scale, whole: tuple[int, int], *,
    is_vouched: bool,
) -> None:  # fmt: skip
    first = begin or 0
    drawn.end_x = end_x = scale.x(end - has)
    if has < end:
        drawn.to_now = Bar("to-now", end_x, round(ZERO_X - end_x, 3))
    if first > 0:
        drawn.begin_x = scale.x(end - first)
    if has > first:
        drawn.bars.append(piece("committed" if is_vouched else "unvouched", scale.x(end - first), end_x))
        if flushed is not None and flushed < has:
            drawn.not_durable = piece("hatch full", scale.x(end - max(flushed, first)), end_x)
    low, high = whole
    if high > low:
        width = max(0, has - first) / (high - low) * ZERO_X
        drawn.linear = Bar("linear", round((first - low) / (high - low) * ZERO_X, 3), round(width, 3))


def _subtitle(one: MemberView, link: HaConnection | None, is_master: bool) -> str:
    said = ha_of(one)
    if one.reach in ("stale", "never"):
        return "never reached" if one.reach == "never" else f"last seen {fmt.clock(one.last_seen)}"
    if said is None:
        before = one.ha_before
        return f"its broker does not answer{f'; as at {fmt.clock(before.as_of)}' if before is not None else ''}"
    if is_master:
        return f"epoch {said.epoch}, {str(said.flush or 'flush unknown').replace('_', ' ').lower()}"
    if said.is_master:
        return f"master of an older epoch, {said.epoch}"
    if said.fenced_by_epoch:
        return f"fenced by epoch {said.fenced_by_epoch}"
    if link is None:
        following = said.following
        stand = following.stand if following is not None else None
        return f"not served: {STANDS[stand]}" if stand in STANDS and stand not in SERVED else "not connected"
    return (
        f"{STATES.get(link.state, link.state)}, {stand_of(link)}" if link.stand else STATES.get(link.state, link.state)
    )


def _is_served(link: HaConnection | None) -> bool:
    return link is not None and link.state == "transfer"


def _behind(lag: int | None) -> str:
    return fmt.UNKNOWN if lag is None else f"{-lag:,} B ahead" if lag < 0 else fmt.size(lag)


def _trouble(found: list[Problem]) -> Trouble | None:
    if not found:
        return None
    one = found[0]
    word = "broker silent" if one.code == "ha_broker_down" else one.code.removeprefix("ha_").replace("_", " ")
    return Trouble(word=word, severity=one.severity, anchor=f"problem-{one.id.replace(':', '-')}", more=len(found) - 1)


def role_of(said: HaView | None) -> str:
    return fmt.UNKNOWN if said is None or said.role is None else said.role.lower().replace("_", " ")


def rate_of(bytes_per_s: float | None) -> str:
    return fmt.UNKNOWN if bytes_per_s is None else f"{fmt.size(bytes_per_s)}/s"


def rows_of(view: GroupView) -> list[BrokerRow]:
    return [_row(one) for one in view.members]


def _row(one: MemberView) -> BrokerRow:
    said = ha_of(one) or (one.ha if one.ha is not None and one.ha.role is not None else None)
    if said is None or ha_of(one) is None:
        address = one.ha.address if one.ha is not None else fmt.UNKNOWN
        slaves = one.ha.ha_address if one.ha is not None else fmt.UNKNOWN
        takes = (one.ha.reason if one.ha is not None and one.reach == "ok" else one.problem) or "does not answer"
        none = fmt.UNKNOWN
        return BrokerRow(
            one.id, role_of(said), False, "attention-text", takes, none, none, none, none, none, none, none, address,
            slaves,
        )  # fmt: skip
    takes = "yes" if said.is_master else "no"
    if said.fenced_by_epoch:
        takes = f"no: epoch {said.fenced_by_epoch} began elsewhere"
    stopped = stopped_by(said)
    if stopped and (said.is_master or said.broken_by):
        takes = f"no: {stopped}"
    files = fmt.UNKNOWN if said.files is None else f"{said.files:,} of {fmt.size(said.file_bytes)}"
    return BrokerRow(
        one.id, role_of(said), bool(said.is_master), "attention-text" if said.fenced_by_epoch or stopped else "",
        takes, fmt.index(said.epoch), fmt.index(said.begin_offset), fmt.index(said.flushed_offset),
        fmt.index(said.end_offset), fmt.index(said.dispatched_offset), files,
        str(said.flush or fmt.UNKNOWN).replace("_", " ").lower(), said.address, said.ha_address,
    )  # fmt: skip


def connections_of(view: GroupView) -> list[ConnectionRow]:
    master = master_of(view)
    found = master[1].connections or () if master is not None else ()
    ordered = sorted(found, key=lambda one: (one.peer_id or one.address, one.address))
    return [_connection(one, is_silent=hangs(one, view)) for one in ordered]


def stand_of(one: HaConnection) -> str:
    """How its log stands to its master's now; a verdict is of when it connected."""
    stand = STANDS.get(one.stand or "", one.stand or fmt.UNKNOWN)
    if one.state == "transfer" and one.stand in SERVED and one.lag_bytes is not None:
        stand = "in step" if one.lag_bytes == 0 else "is sent what it lacks"
    if one.kind == "rocketmq":
        far = "at its master's end" if one.lag_bytes == 0 else stand.replace("in step", "behind")
        return f"{far}, by its offset alone: RocketMQ's protocol says nothing of what it holds"
    return stand


def _connection(one: HaConnection, *, is_silent: bool) -> ConnectionRow:
    stand, served = stand_of(one), one.state == "transfer" and not is_silent
    return ConnectionRow(
        one.peer_id or fmt.UNKNOWN, one.address, "says nothing" if is_silent else STATES.get(one.state, one.state),
        "" if served else "attention-text", stand, fmt.index(one.sent_offset),
        fmt.index(one.acked_offset), fmt.size(one.lag_bytes), fmt.duration_ms(one.lag_ms),
        rate_of(one.rate_bytes_per_s), fmt.duration_ms(one.last_heard_ms),
        "" if one.state == "transfer" else one.reason or "",
    )  # fmt: skip


def waiting_of(view: GroupView) -> tuple[list[HaWaiting], int]:
    """The sends that have waited for longer than an acknowledgement takes, and how many wait at all."""
    master = master_of(view)
    if master is None:
        return [], 0
    return [one for one in master[1].waiting or () if one.age_ms >= LONG_MS], master[1].waiting_count or 0


def context_of(view: GroupView) -> dict[str, object]:
    """What the templates of a pair's page draw."""
    master, (waiting, count) = master_of(view), waiting_of(view)
    return {
        "picture": picture_of(view), "brokers": rows_of(view), "connections": connections_of(view),
        "waiting": waiting, "waiting_count": count, "unchecked": list(dict.fromkeys(unchecked_of(view))),
        "master": None if master is None else master[1], "zero_x": ZERO_X,
        "epochs": () if master is None else (master[1].epochs or ())[-20:][::-1],
    }  # fmt: skip
