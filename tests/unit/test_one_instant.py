"""One moment, one picture: whatever members say, and in whatever order they are asked, nothing impossible is drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from app.console.aggregate import ClusterInfo, group_view
from app.console.sample import NodeSample
from app.console.waterline import ZERO_X, level_log, waterline
from app.health.group_view import GroupView
from node.views.closures import ClosuresView
from node.views.reading import read
from node.views.replication import DispatchersView, DispatcherView, WatermarksView
from node.views.state import StateView

T0 = datetime(2026, 1, 1, tzinfo=UTC)
IDS = ("n0", "n1", "n2")


@dataclass
class World:
    """A group whose log grows, is acknowledged and changes hands; `n0` leads at first."""

    leader: str = "n0"
    term: int = 1
    now: datetime = T0
    committed: int = -1
    ends: dict[str, int] = field(default_factory=lambda: dict.fromkeys(IDS, -1))
    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(IDS, "APPEND"))
    acked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(IDS, -1))
    truth: dict[str, int] = field(default_factory=dict)  # all ends, when a leader was asked last
    samples: dict[str, NodeSample] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.samples = {one: NodeSample(one, "a:1", f"http://{one}", added_at=T0) for one in IDS}

    def step(self, kind: str, who: str, by: int) -> None:
        self.now += timedelta(milliseconds=40)
        if kind == "append":
            self.ends[self.leader] += by
        elif kind == "copy" and who != self.leader and self.states[who] == "APPEND":
            self.ends[who] = self.acked[who] = min(self.ends[self.leader], self.ends[who] + by)
        elif kind == "match" and who != self.leader and self.states[who] == "COMPARE":
            self.ends[who] = self.acked[who] = min(self.ends[who], self.ends[self.leader])
            self.states[who] = "APPEND"
        elif kind == "elect" and self.ends[who] >= self.committed and who != self.leader:
            self.leader, self.term = who, self.term + 1
            self.states = {one: "APPEND" if one == who else "COMPARE" for one in IDS}
            # Nothing is matched yet, or as far as both must hold the same; what they have on disk reaches further.
            self.acked = {one: min(self.ends[one], self.committed) if by % 2 else -1 for one in IDS}
        elif kind == "ask":
            self.ask(who, tells_end=by % 2 == 0, copied_meanwhile=by % 3 == 0)
        elif kind == "silence":
            self.samples[who].misses += 1
            self.now += timedelta(milliseconds=700)
        elif kind == "wait":
            self.now += timedelta(seconds=2.5)
        self.commit()

    def commit(self) -> None:
        held = sorted([self.ends[self.leader], *(self.acked[one] for one in IDS if one != self.leader)])
        self.committed = max(self.committed, min(held[1], self.ends[self.leader]))

    def ask(self, who: str, *, tells_end: bool, copied_meanwhile: bool) -> None:
        """State first, and of a leader its views after that: the log may have grown in between, on a quorum too.

        An older version's watermarks do not say where its own log ends.
        """
        sample, leads = self.samples[who], who == self.leader
        own = {"begin_index": 0, "end_index": self.ends[who], "durable_index": self.ends[who] - 1,
               "committed_index": min(self.committed, self.ends[who]), "applied_index": self.committed}  # fmt: skip
        role = "LEADER" if leads else "FOLLOWER"
        reported = {
            "engine": "ok",
            "self_id": who,
            "role": role,
            "term": self.term,
            "leader_id": self.leader,
            "log": own,
        }
        sample.state = read(StateView, reported)
        sample.last_seen, sample.misses = self.now, 0
        if not leads:
            return
        self.now += timedelta(milliseconds=15)
        self.ends[who] += 3
        end = self.ends[who]
        for one in IDS:
            if copied_meanwhile and one != who and self.states[one] == "APPEND":
                self.ends[one] = self.acked[one] = end
        self.commit()
        self.truth = dict(self.ends)
        marks = [
            {"id": one, "match_index": (end if tells_end else None) if one == who else self.acked[one],
             "durable_index": end - 1 if one == who else self.ends[one],
             "lag_entries": None if self.states[one] != "APPEND" else end - (end if one == who else self.acked[one])}
            for one in IDS
        ]  # fmt: skip
        watermarks = {"needed": 2, "quorum_index": self.committed, "peers": marks,
                      "end_index": end if tells_end else None, "committed_index": self.committed,
                      "applied_index": self.committed}  # fmt: skip
        sample.watermarks = read(WatermarksView, watermarks)
        sent = [DispatcherView(peer_id=one, state=self.states[one]) for one in IDS if one != who]
        sample.dispatchers = DispatchersView(items=tuple(sent))
        sample.closures = ClosuresView(pending=0, limit=10, oldest_age_ms=None)


STEP = st.tuples(
    st.sampled_from(["append", "append", "copy", "copy", "match", "ask", "ask", "ask", "elect", "silence", "wait"]),
    st.sampled_from(IDS),
    st.integers(1, 60),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=60))
def test_no_picture_shows_what_never_was(history: list[tuple[str, str, int]]) -> None:
    world = World()
    for kind, who, by in history:
        world.step(kind, who, by)
        view = group_view(ClusterInfo("g", "g", "g"), list(world.samples.values()), world.now)
        drawn = waterline(view)
        leader_end = view.leader_end_index
        if leader_end is None:
            assert drawn.quorum_x is None and all(lane.behind_text == "unknown" for lane in drawn.lanes)
        else:
            assert drawn.quorum_x is None or drawn.quorum_x <= ZERO_X
            assert view.quorum_index is None or view.quorum_index <= leader_end
        check_what_is_old(view)
        for member in view.members:
            marks = level_log(view, member)
            end = marks.end_index
            for name in ("committed_index", "durable_index", "applied_index"):
                mark = getattr(marks, name)
                assert mark is None or end is None or mark <= end, (member.id, marks)
            if end is not None and leader_end is not None and end > leader_end:
                assert world.truth[member.id] > leader_end, "it was, when the leader was asked"


def check_what_is_old(view: GroupView) -> None:
    """Who is silent has no role and no distance, does not answer and does not lead."""
    for one in view.members:
        if one.reach != "ok":
            assert one.role is None, "what it was before it fell silent is not what it is"
            assert view.lag_entries(one) is None, "how far it is behind now, nobody can tell"
            assert one.id != view.leader_id
        else:
            assert one.age_ms is not None and one.age_ms <= 2_000, "an old answer is no picture of now"
    assert view.quorum.answering == sum(1 for one in view.members if one.reach == "ok")
    leaders = [one for one in view.members if one.role == "LEADER"]
    assert view.leader is None or view.leader.term == max(one.term or 0 for one in leaders)


def leader_sample(now: datetime) -> NodeSample:
    """`n0` leads three members in term 7 and hears both; nothing but its state has been answered yet."""
    links = [{"peer_id": one, "last_heard_ms": 20} for one in IDS if one != "n0"]
    peers = [{"id": one, "address": f"{one}:1"} for one in IDS]
    sample = NodeSample("n0", "n0:1", "http://n0", added_at=T0, last_seen=now)
    state = {"engine": "ok", "self_id": "n0", "role": "LEADER", "term": 7, "links": links, "peers": peers}
    sample.state = read(StateView, state)
    return sample


def test_a_leader_whose_watermarks_are_still_asked_for_has_its_quorum() -> None:
    """Seen at a console's start: "The quorum is lost" for 53 ms, between a leader's state and its watermarks."""
    followers = [NodeSample(one, f"{one}:1", f"http://{one}", added_at=T0) for one in IDS if one != "n0"]
    view = group_view(ClusterInfo("c", "c", "g"), [leader_sample(T0), *followers], T0)
    assert (view.leader_id, view.quorum.standing, view.quorum.stands) == ("n0", 3, True)


def test_what_a_leader_said_in_another_term_is_dropped() -> None:
    sample = leader_sample(T0)
    for term, kept in ((7, True), (None, True), (6, False)):  # an older version's watermarks name no term
        sample.watermarks = read(WatermarksView, {"term": term, "peers": []})
        sample.closures = ClosuresView(pending=0, limit=10, oldest_age_ms=None)
        sample.drop_what_another_term_said()
        assert (sample.watermarks is not None) == (sample.closures is not None) == kept
    sample.watermarks = read(WatermarksView, {"term": 7, "peers": []})
    sample.state = read(StateView, {"engine": "ok", "self_id": "n0", "role": "FOLLOWER", "term": 7})
    sample.drop_what_another_term_said()
    assert sample.watermarks is None
