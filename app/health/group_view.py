"""The GroupView: one picture of a group, which rules, pages, pictures and `status` read.

It is put together from the members' own views (`node.views`) by `app.console.aggregate`, judged by
`app.health.classify` and concluded by `app.console.verdict`; each step makes a new one. Invariants: nothing unknown
reads 0, it is None; what is compared with each other is the leader's word of one instant (`leader_marks`, watermarks).
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from node.views.base import Flag, Number, Text, UnknownView, View, Whole
from node.views.closures import ClosuresView, CompletedView
from node.views.ha import HaView
from node.views.replication import DispatcherView, WatermarkView
from node.views.state import LinkView, LogView, StateView


class ClusterView(View):
    """Which group this is; `demo`: a demo runs it, so that its breaks can be ended at once. `shows_token`: its control
    planes are shown a token, so that a printed call needs one, too."""

    id: Text
    name: Text
    group: Text
    group_id: Text | None = None
    demo: Flag = False
    shows_token: Flag = Field(default=False, exclude=True)


class QuorumView(View):
    """How many are needed, answer us, and stand with the leader; `stands` None: nobody can tell."""

    size: Whole
    needed: Whole
    answering: Whole
    standing: Whole | None = None
    stands: Flag | None = None


class Marks(View):
    """A log's marks at one instant."""

    begin_index: Whole | None = None
    applied_index: Whole | None = None
    committed_index: Whole | None = None
    durable_index: Whole | None = None
    quorum_index: Whole | None = None
    end_index: Whole | None = None


class SentenceView(View):
    """What every page begins with."""

    headline: str = ""
    rest: str = ""


class NextStep(View):
    """What a problem means, what is at stake, and what to do: `step` in words, `command` and `curl` as they run.

    `actions`: what the console has a button for; `from_index` to `to_index`: the entries it is about.
    """

    means: str = ""
    at_stake: str = ""
    step: str = ""
    command: str | None = None
    curl: str | None = None
    docs: Text | None = None
    actions: tuple[Text, ...] = ()
    from_index: Whole | None = None
    to_index: Whole | None = None

    @property
    def sentence(self) -> str:
        """The step and its command in one line."""
        return f"{self.step}: `{self.command}`" if self.command else self.step


class Problem(NextStep):
    """Something that is wrong, since when, and what to do; `what` is the text without an age.

    `acknowledged_by`, `muted_until`: who has taken it on, and until when no message is sent of it. `since_unknown`:
    it stood before anybody looked, and `since` is the first look.
    """

    id: Text
    code: Text
    severity: Text
    node_id: Text | None = None
    member: Text | None = None
    text: str
    what: str
    since: Text
    since_unknown: bool = Field(default=False, exclude=True)
    next_step: str
    acknowledged_by: Text | None = None
    acknowledged_at: Text | None = None
    muted_until: Text | None = None


class Incident(View):
    """Something pressing that is over, and what it cost; None: not known.

    `pause_ms`: for how long no write got through, to a sample; `writes_unknown`: at least so many callers could not
    learn how their write ended.
    """

    code: Text
    node_id: Text | None = None
    text: str
    since: Text
    until: Text
    problems: tuple[str, ...] = ()
    leaders: tuple[Text, ...] = ()
    pause_ms: Whole | None = None
    entries_cut: Whole | None = None
    cuts: tuple[str, ...] = ()
    writes_unknown: Whole | None = None


class Doubt(View):
    """Something that is not known to be well; `member` None: it concerns the group."""

    member: Text | None = None
    text: str


class AuditView(View):
    """An audit, as far as the sentence needs it; `first`: what it found first, in words.

    `found_from` to `found_to`: what all its critical findings lie in; None where it does not list them all.
    `states_differ`: the logs agree, and what a state machine made of them does not.
    """

    id: Text | None = None
    state: Text | None = None
    verdict: Text | None = None
    depth: Text | None = None
    from_index: Whole | None = None
    to_index: Whole | None = None
    finished_at: Text | None = None
    first: Text | None = None
    node_id: Text | None = None
    found_from: Whole | None = None
    found_to: Whole | None = None
    states_differ: Flag | None = None


class StartView(View):
    """How a member was started, as its control plane said; `data_dir` is the directory of its own log."""

    started_with: Text | None = None
    data_dir: Text | None = None


class MemberView(View):
    """One member: what it said last, how old that is, and what the leader says of it.

    `reach`: ok | stale | never | down (its control plane answers, its engine does not run). `start`: remembered from
    before it fell silent. `certificate_ends`: of the certificate that its control plane serves with.
    `ha`: what a broker of a classic pair said last, or its control plane of it; `ha_before`: the broker itself.
    `clock_ahead_s`: its wall clock less this machine's.
    """

    id: Text
    address: Text = ""
    control_url: Text | None = None
    role: Text | None = None
    reach: Text
    last_seen: Text | None = None
    age_ms: Number | None = None
    interval_ms: Number | None = None
    never_reached_since: Text | None = None
    missed_since: Text | None = Field(default=None, exclude=True)  # when it was first noticed that it does not answer
    is_learner: Flag = False  # it has no vote: nothing waits for it
    is_java: Flag = False
    problem: Text | None = None
    # In place of a state its control plane "refuses" who asks, or "errs": it sends what is none. None: it is silent.
    answers: Text | None = Field(default=None, exclude=True)
    state: StateView | None = None
    start: StartView | None = None
    certificate_ends: Text | None = None
    clock_ahead_s: Number | None = Field(default=None, exclude=True)
    watermark: WatermarkView | None = None
    dispatcher: DispatcherView | None = None
    ha: HaView | None = None
    ha_before: HaView | None = Field(default=None, exclude=True)
    unknown: tuple[UnknownView, ...] = ()

    @property
    def log(self) -> LogView:
        """What it says of its own log; all unknown where it says nothing."""
        return LogView() if self.state is None else self.state.marks

    @property
    def mark(self) -> WatermarkView:
        """What the leader says of its log; all unknown where it says nothing."""
        return WatermarkView(id=self.id) if self.watermark is None else self.watermark

    @property
    def dispatcher_state(self) -> str | None:
        return None if self.dispatcher is None else self.dispatcher.state

    @property
    def term(self) -> int | None:
        return None if self.state is None else self.state.term

    @property
    def leader_id(self) -> str | None:
        """Whom it follows."""
        return None if self.state is None else self.state.leader_id

    @property
    def unheard_since(self) -> str | None:
        """Since when its control plane, which answers, does not hear its engine; None: it does, or does not say."""
        if self.problem is not None or self.state is None or self.state.engine == "ok":
            return None
        reported = [one.since for one in self.state.unknown or () if one.field == "state"]
        return reported[-1] if reported else None

    @property
    def answered_at(self) -> str | None:
        """When the member itself answered last: that its control plane goes on answering is no word of its engine."""
        return self.unheard_since or self.last_seen

    @property
    def missing(self) -> tuple[UnknownView, ...]:
        """What a page says is unknown of it: not the round trips, which a follower never knows."""
        return tuple(one for one in self.unknown if not one.field.endswith(".rtt_ms"))

    def link_to(self, peer_id: str) -> LinkView | None:
        """What it says of its connections to a peer."""
        return None if self.state is None else self.state.link_to(peer_id)


class GroupView(View):
    """The whole picture. `at`: frozen as it was then. `audit` that was never set: nobody has looked whether one ran.

    `members`: of the configuration in effect at the leader; `others`: who is asked, and is not in it (any more).
    """

    cluster: ClusterView
    as_of: Text
    at: Text | None = None
    severity: Text = "unknown"
    sentence: SentenceView = SentenceView()
    problems: tuple[Problem, ...] = ()
    unproven: tuple[Doubt, ...] = ()
    leader_id: Text | None = None
    term: Whole | None = None
    flush: Text | None = None
    leader_end_index: Whole | None = None
    quorum: QuorumView
    quorum_index: Whole | None = None
    leader_marks: Marks = Marks()
    members: tuple[MemberView, ...]
    others: tuple[MemberView, ...] = ()
    closures: ClosuresView | None = None
    leader_since: Text | None = None
    last_completed: CompletedView | None = None
    audit: AuditView | None = None
    seen_leading: tuple[Text, ...] = ()  # who led since its process started, as far as was seen
    recent: tuple[Incident, ...] = ()  # what was over within the last hour, newest first
    # Whether its leader's commit index moved between its last two answers: then writes get through, whatever is said.
    commits: bool = Field(default=False, exclude=True)
    pending: Flag = False  # something is wrong that has not lasted long enough to be a problem

    @property
    def leader(self) -> MemberView | None:
        return self.asked(self.leader_id)  # one that removes itself leads on until that is committed

    @property
    def is_pair(self) -> bool:
        """Whether it is a pair of brokers in classic master/slave mode, without a replicated log."""
        return any(one.ha is not None for one in self.members)

    @property
    def has_brokers(self) -> bool:
        """Whether its log is a RocketMQ broker's, as far as a member says."""
        return self.is_pair or any(one.state is not None and one.state.broker for one in self.members)

    @property
    def knows_audits(self) -> bool:
        return "audit" in self.model_fields_set

    def member(self, node_id: str | None) -> MemberView | None:
        return next((one for one in self.members if one.id == node_id), None)

    def asked(self, node_id: str | None) -> MemberView | None:
        """A member, or one that is asked and is none."""
        return next((one for one in (*self.members, *self.others) if one.id == node_id), None)

    def lag_entries(self, one: MemberView) -> int | None:
        """How far a member is behind the leader's end; None when either end is unknown."""
        if one.id == self.leader_id:
            return 0
        if one.reach != "ok":
            return None
        if one.mark.lag_entries is not None:
            return one.mark.lag_entries
        end = one.log.end_index
        if end is None or self.leader_end_index is None:
            return None
        return max(0, self.leader_end_index - end)

    def lags(self) -> Mapping[str, int | None]:
        return {one.id: self.lag_entries(one) for one in self.members}
