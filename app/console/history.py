"""The history of every replica's marks: recorded each sample, kept in three tiers, answered for a window.

Invariants: what a replica says of itself is recorded only while it answers, and of a silent one only how far behind it
is; where nobody leads its silence is a gap, never a straight line. The coarser tiers are stored an hour a row, packed
(app.console.packing), and what is stored is never read whole. Recording does no I/O; `save` writes what changed. The
memory holds whoever was a member since it last did, and no more than NAMES_MAX of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, select

from app.console.errors import NotFound
from app.console.packing import NULL, pack, unpack
from app.console.tiers import COLUMNS, ROLES, TIERS, Buckets, Row, T, Tier, bucketed, row_of, to_columns, to_rows
from app.db.engine import Sessions
from app.db.models import HistoryHour
from app.health.group_view import GroupView, Marks, MemberView, SentenceView
from app.times import EPOCH, parse_time, rfc3339, shifted, utc_now
from node.protocol.group_members import MEMBERS_MAX
from node.views.base import UnknownView
from node.views.replication import WatermarkView
from node.views.state import LogView, StateView

Json = dict[str, Any]
HOUR_S = 3600
POINTS_MAX = 5000
# The memory of a stored tier holds the hour being filled and the one before.
MEMORY_S = 2 * HOUR_S
NAMES_MAX: Final = 4 * MEMBERS_MAX
# A frozen view shows the newest sample at most this old.
FROZEN_S = 900


def lag_of(view: GroupView, member: MemberView) -> int | None:
    """As the waterline shows it: of a silent member by its leader, and where that has not matched it yet, from the end
    that it reported last."""
    mark, end = member.mark, member.log.end_index
    if member.reach == "ok":
        return view.lag_entries(member)
    if mark.lag_entries is not None or mark.match_index is None or end is None or view.leader_end_index is None:
        return mark.lag_entries
    return max(0, view.leader_end_index - end)


class History:
    """All groups' history."""

    def __init__(self, sessions: Sessions, *, days: int = 30) -> None:
        self.sessions = sessions
        self.keep_s = {
            tier.step_s: tier.keep_s if not tier.stored else min(tier.keep_s, days * 86_400) for tier in TIERS
        }
        self.buckets: dict[tuple[str, str, int], Buckets] = {}
        self.seen: dict[str, set[str]] = {}  # group -> who was a member of it since the last save

    def record(self, view: GroupView) -> None:
        at_s = int(parse_time(view.as_of).timestamp())
        seen = self.seen.setdefault(view.cluster.id, set())
        seen.update([one.id for one in view.members if one.id not in seen][: NAMES_MAX - len(seen)])
        for member in view.members:
            if member.id not in seen:
                continue
            lag = lag_of(view, member)
            if member.reach != "ok" and lag is None:
                continue
            row = row_of(at_s, member, lag)
            for tier in TIERS:
                key = (view.cluster.id, member.id, tier.step_s)
                buckets = self.buckets.setdefault(key, Buckets(tier))
                buckets.add(row)
                if len(buckets.rows) % 64 == 0:
                    buckets.trim(at_s, MEMORY_S if tier.stored else tier.keep_s)

    def forget(self, cluster_id: str) -> None:
        """The group is watched no more: what is not stored of it never is."""
        self.seen.pop(cluster_id, None)
        for key in [key for key in self.buckets if key[0] == cluster_id]:
            del self.buckets[key]

    # --- storing ---

    async def save(self) -> None:
        """Writes the hours that changed, and forgets what is too old, and who was no member since it did so before."""
        seen, self.seen = self.seen, {}
        try:
            await self.save_hours(seen)
        except BaseException:
            for cluster_id, names in seen.items():
                self.seen[cluster_id] = names | self.seen.get(cluster_id, set())
            raise
        now = utc_now()
        async with self.sessions() as db, db.begin():
            for step_s, keep_s in self.keep_s.items():
                old = (HistoryHour.tier_s == step_s) & (HistoryHour.hour < now - timedelta(seconds=keep_s + HOUR_S))
                await db.execute(delete(HistoryHour).where(old))

    async def save_hours(self, seen: Mapping[str, set[str]]) -> None:
        for key, buckets in list(self.buckets.items()):
            cluster_id, node_id, step_s = key
            if node_id not in seen.get(cluster_id, ()):  # all of it was stored by then
                self.buckets.pop(key, None)
                continue
            if key not in self.buckets or not buckets.tier.stored or buckets.dirty_from_s is None:
                continue
            first_hour = buckets.dirty_from_s - buckets.dirty_from_s % HOUR_S
            last = buckets.rows[-1][T]
            fresh = buckets.between(first_hour, last)
            for hour_s in sorted({row[T] - row[T] % HOUR_S for row in fresh}):  # a clock may have passed over many
                await self.save_hour(cluster_id, node_id, step_s, hour_s, buckets.between(hour_s, hour_s + HOUR_S - 1))
            buckets.dirty_from_s = last

    async def save_hour(self, cluster_id: str, node_id: str, step_s: int, hour_s: int, rows: list[Row]) -> None:
        """Merges with what an earlier run of the console stored of the same hour."""
        if not rows:
            return
        hour = time_at(hour_s)
        async with self.sessions() as db, db.begin():
            stored = await db.get(HistoryHour, (cluster_id, node_id, step_s, hour))
            if stored is not None:
                before = [row for row in to_rows(unpack(stored.packed)) if row[T] < rows[0][T]]
                rows = before + rows
                stored.packed, stored.samples = pack(to_columns(rows)), len(rows)
            else:
                db.add(
                    HistoryHour(
                        cluster_id=cluster_id,
                        node_id=node_id,
                        tier_s=step_s,
                        hour=hour,
                        samples=len(rows),
                        packed=pack(to_columns(rows)),
                    )
                )

    # --- asking ---

    def tier_for(self, since: datetime, step_s: int) -> Tier:
        """The finest tier that reaches back to `since` and is not finer than what can be drawn."""
        age_s = (utc_now() - since).total_seconds()
        reaching = [tier for tier in TIERS if age_s <= self.keep_s[tier.step_s] + 60] or [TIERS[-1]]
        coarse_enough = [tier for tier in reaching if tier.step_s <= max(step_s, 1)]
        return coarse_enough[-1] if coarse_enough else reaching[0]

    async def rows(self, cluster_id: str, node_id: str, tier: Tier, since_s: float, until_s: float) -> list[Row]:
        buckets = self.buckets.get((cluster_id, node_id, tier.step_s))
        fresh = buckets.between(since_s, until_s) if buckets is not None else []
        if not tier.stored:
            return fresh
        first_hour, until = time_at(since_s - since_s % HOUR_S), time_at(until_s)
        mine = (HistoryHour.cluster_id == cluster_id) & (HistoryHour.node_id == node_id)
        window = (HistoryHour.tier_s == tier.step_s) & (HistoryHour.hour >= first_hour) & (HistoryHour.hour <= until)
        async with self.sessions() as db:
            asked = select(HistoryHour.packed).where(mine & window).order_by(HistoryHour.hour)
            stored = [row for packed in await db.scalars(asked) for row in to_rows(unpack(packed))]
        edge = fresh[0][T] if fresh else until_s + 1
        return [row for row in stored if since_s <= row[T] <= until_s and row[T] < edge] + fresh

    async def query(self, cluster_id: str, node_ids: list[str], since: datetime, until: datetime, points: int) -> Json:
        """One shared time axis; None where a replica has no sample (a gap)."""
        points = max(2, min(points, POINTS_MAX))
        since_s, until_s = since.timestamp(), until.timestamp()
        wanted_s = (until_s - since_s) / points
        tier = self.tier_for(since, int(wanted_s))
        step_s = tier.step_s * max(1, -(-int(wanted_s) // tier.step_s))
        series = {}
        for node_id in node_ids:
            rows = await self.rows(cluster_id, node_id, tier, since_s, until_s)
            series[node_id] = {row[T]: row for row in bucketed(rows, step_s)}
        times = sorted({at for rows in series.values() for at in rows})
        times = with_gaps(times, step_s)
        return {
            "cluster_id": cluster_id,
            "since": rfc3339(since),
            "until": rfc3339(until),
            "step_s": step_s,
            "tier": tier.step_s,
            "downsampled": step_s > 1,
            "note": f"each point is the worst of {step_s} s" if step_s > 1 else "every sample",
            "t": times,
            "replicas": {node_id: columns_of(times, rows) for node_id, rows in series.items()},
        }

    async def view_at(self, view: GroupView, at: datetime) -> GroupView:
        """The group as it was: marks from the history, everything that history does not keep listed as unknown.

        Raises NotFound.
        """
        at_s = at.timestamp()
        tier = self.tier_for(at, 1)
        found: list[tuple[MemberView, Row | None]] = []
        for member in view.members:
            rows = await self.rows(view.cluster.id, member.id, tier, at_s - FROZEN_S, at_s)
            fresh = bool(rows) and rows[-1][T] >= at_s - 3 * tier.step_s - 2
            found.append((member, rows[-1] if fresh else None))
        if all(row is None for _, row in found):
            raise NotFound(f"The history holds no sample of {rfc3339(at)}.", title="No history there")
        return frozen(view, tuple(frozen_member(member, row, at) for member, row in found), at)


def time_at(at_s: float) -> datetime:
    """Of seconds since 1970; somebody may ask for a time at the edge of the years that there are."""
    return shifted(EPOCH, at_s)


def frozen(view: GroupView, members: tuple[MemberView, ...], at: datetime) -> GroupView:
    """The whole from its members as they were; who led the newest term then leads it."""
    led = [one for one in members if one.role == "LEADER"]
    leader = max(led, key=lambda one: one.term or 0, default=None)
    answering = sum(1 for one in members if one.reach == "ok")
    who = f"{leader.id} led term {leader.term}." if leader is not None else "No leader was seen."
    then = {
        "at": rfc3339(at),
        "members": members,
        "closures": None,
        "last_completed": None,
        "leader_since": None,
        "problems": (),
        "unproven": (),
        "severity": "unknown",
        "leader_id": leader.id if leader is not None else None,
        "term": leader.term if leader is not None else None,
        "leader_end_index": leader.log.end_index if leader is not None else None,
        "quorum_index": leader.log.committed_index if leader is not None else None,
        "leader_marks": Marks(),
        "quorum": view.quorum.model_copy(update={"answering": answering, "standing": None, "stands": None}),
        "sentence": SentenceView(
            headline=f"The group as it was at {rfc3339(at)}.",
            rest=f"{answering} of {view.quorum.size} replicas answered then. {who}",
        ),
    }
    return view.model_copy(update=then)


def frozen_member(member: MemberView, row: Row | None, at: datetime) -> MemberView:
    reason = "the history keeps marks only" if row is not None else "no sample was taken then"
    unknown = tuple(UnknownView(field=name, reason=reason, since=rfc3339(at)) for name in ("watermark", "dispatcher"))
    then: dict[str, object] = {"watermark": None, "dispatcher": None, "unknown": unknown, "problem": None}
    silent = {"state": None, "role": None, "reach": "stale"}
    if row is None:
        return member.model_copy(update={**then, **silent})
    values = {name: (None if value == NULL else value) for name, value in zip(COLUMNS, row, strict=True)}
    then["watermark"] = WatermarkView(
        id=member.id, lag_entries=values["lag"], lag_bytes=values["lag_bytes"], lag_ms=values["lag_ms"]
    )
    if values["role"] is None:
        return member.model_copy(update={**then, **silent})
    role = ROLES[values["role"]] or None
    state = member.state
    log = LogView(
        begin_index=values["begin"],
        applied_index=values["applied"],
        committed_index=values["committed"],
        durable_index=values["durable"],
        end_index=values["end"],
    )
    then |= {
        "state": StateView(
            engine="ok",
            group=state.group if state is not None else None,
            self_id=member.id,
            flush=state.flush if state is not None else None,
            version=state.version if state is not None else None,
            term=values["term"],
            role=role,
            log=log,
            alarms=(),
        ),
        "role": role,
        "reach": "ok",
        "last_seen": rfc3339(time_at(row[T])),
        "never_reached_since": None,
    }
    return member.model_copy(update=then)


def with_gaps(times: list[int], step_s: int) -> list[int]:
    """A moment without any sample between two that lie apart, so that a line breaks there."""
    out: list[int] = []
    for at in times:
        if out and at - out[-1] > 3 * step_s:
            out.append(out[-1] + step_s)
        out.append(at)
    return out


def columns_of(times: list[int], rows: dict[int, Row]) -> Json:
    columns: Json = {}
    for place, name in enumerate(COLUMNS[1:], start=1):
        found = [row[place] if (row := rows.get(at)) is not None else NULL for at in times]
        columns[name] = [None if value == NULL else value for value in found]
    columns["role"] = [ROLES[value] or None if value is not None else None for value in columns["role"]]
    return columns
