"""`GET closures`: the writes that wait for their quorum, and for whom."""

from __future__ import annotations

from typing import Annotated

from node.views.base import AnswerView, Bounded, Number, Text, Unknowns, View, Whole

Members = Annotated[tuple[Text, ...], Bounded]


class ClosureGroupView(View):
    """Neighbouring requests that wait for the same members: `needed` of `waits_for` must still answer."""

    waits_for: Members
    needed: Whole
    count: Whole | None = None
    first_index: Whole | None = None
    last_index: Whole | None = None
    oldest_age_ms: Number | None = None
    bytes: Number | None = None
    times_out_in_ms: Number | None = None


class ClosureView(View):
    """One request that waits."""

    first_index: Whole
    last_index: Whole | None = None
    term: Whole | None = None
    bytes: Number | None = None
    age_ms: Number | None = None
    waits_for: Members | None = None
    times_out_in_ms: Number | None = None


class CompletedView(View):
    """The newest request that a quorum answered in this leadership, and how long it waited."""

    at: Text | None = None
    took_ms: Number | None = None


class ClosuresView(AnswerView):
    """All requests that wait; `items` holds the oldest 100."""

    term: Whole | None = None
    leader_id: Text | None = None
    pending: Whole | None = None
    limit: Whole | None = None
    pending_entries: Whole | None = None
    pending_bytes: Whole | None = None
    oldest_age_ms: Number | None = None
    groups: Annotated[tuple[ClosureGroupView, ...], Bounded] | None = None
    items: Annotated[tuple[ClosureView, ...], Bounded] | None = None
    last_completed: CompletedView | None = None
    unknown: Unknowns | None = None
