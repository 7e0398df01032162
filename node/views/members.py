"""`GET members`: who belongs to the group by this member's log, and which change is under way.

Another member's log may say something else for a moment: what counts is the leader's (SAFETY M1, M3).
"""

from __future__ import annotations

from typing import Annotated

from node.views.base import AnswerView, Bounded, Flag, Number, OfMembers, Text, Unknowns, View, Whole


class MemberView(View):
    """One member. `joined_index`: at which entry it came, -1 since the group's birth; `voter_index`: at which one it
    became a voter, null for a learner, and where that was before entries said so. `promoting`: a learner that
    becomes a voter once it has caught up; `replaces`: who leaves then. What it lacks, and how long it takes to catch up
    beside nothing else that is sent to it, the leader alone knows."""

    id: Text
    address: Text | None = None
    kind: Text | None = None
    joined_index: Whole | None = None
    voter_index: Whole | None = None
    connected: Flag | None = None
    promoting: Flag | None = None
    replaces: Text | None = None
    lag_entries: Whole | None = None
    lag_bytes: Number | None = None
    caught_up: Flag | None = None
    catch_up_s_at_most: Number | None = None


class PendingView(View):
    """A configuration whose entry is not committed yet: `needed` voters more of those in `waits_for` have to hold it.
    Whom it waits for the leader alone knows."""

    index: Whole | None = None
    waits_for: Annotated[tuple[Text, ...], Bounded] | None = None
    needed: Whole | None = None


class MembersView(AnswerView):
    """The whole configuration, and the entry that says so (-1: the group's birth). `ended`: ids that the group had
    before it went on with the survivors of a lost majority."""

    term: Whole | None = None
    leader_id: Text | None = None
    index: Whole | None = None
    needed: Whole | None = None
    items: Annotated[tuple[MemberView, ...], OfMembers] | None = None
    next: Text | None = None
    pending: PendingView | None = None
    removed: Annotated[tuple[Text, ...], Bounded] | None = None
    ended: Annotated[tuple[Text, ...], Bounded] | None = None
    unknown: Unknowns | None = None
