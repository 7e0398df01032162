"""THE SENTENCE that every page begins with: the worst problem, its cause, since when, whether the quorum stands."""

from __future__ import annotations

from app.health.audited import audit_phrase
from app.health.classify import worst
from app.health.confirming import confirm_nothing, survives, writes_stopped
from app.health.facts import INFO, UNKNOWN, capital, join, seconds_since, spell
from app.health.group_view import GroupView, SentenceView
from app.health.pairs import sentence_of, severity_of
from app.times import time_of


def conclude(view: GroupView) -> GroupView:
    """With `severity` and `sentence` from `problems` and `unproven`: "in step" is said only of what is proven."""
    severity = worst(view.problems)
    if view.is_pair:
        return view.model_copy(update={"severity": severity_of(view, severity), "sentence": sentence_of(view)})
    if severity == "ok" and doubts(view):
        severity = UNKNOWN
    return view.model_copy(update={"severity": severity, "sentence": sentence(view)})


def doubts(view: GroupView) -> list[str]:
    """What is not known of the members that vote; nothing waits for one that learns."""
    learners = learners_of(view)
    return [one.text for one in view.unproven if one.member not in learners]


def learners_of(view: GroupView) -> set[str]:
    return {one.id for one in view.members if one.is_learner}


def learners_phrase(view: GroupView) -> str:
    """What is not known of learners, where no notice names them."""
    left = learners_of(view) - {one.node_id for one in view.problems}
    texts = [one.text for one in view.unproven if one.member in left]
    return f"Not known of those that learn: {'; '.join(texts[:3])}." if texts else ""


def sentence(view: GroupView) -> SentenceView:
    pressing = [one for one in view.problems if one.severity != INFO]
    notices = [one for one in view.problems if one.severity == INFO]
    size, kind = view.quorum.size, "voter" if learners_of(view) else "replica"
    if pressing:
        headline = pressing[0].text
        parts = [quorum_phrase(view)]
        if len(pressing) > 1:
            parts.append(f"{len(pressing) - 1} more problem{'s' if len(pressing) > 2 else ''}.")
    elif doubts(view):
        who = f"the only {kind} is" if size == 1 else f"all {size} {kind}s are"
        first, *others = doubts(view)
        headline = f"Whether {who} in step is not known: {first}."
        parts = [quorum_phrase(view), f"Also: {'; '.join(others[:3])}." if others else ""]
    else:
        headline = f"The only {kind} is in step." if size == 1 else f"All {size} {kind}s are in step."
        parts = [leader_phrase(view), quorum_phrase(view), audit_phrase(view), learners_phrase(view)]
    parts += [capital(one.text, one.member) for one in notices]
    return SentenceView(headline=headline, rest=" ".join(part for part in parts if part))


def leader_phrase(view: GroupView) -> str:
    since, now = time_of(view.leader_since), time_of(view.as_of)
    held_s = seconds_since(since, now) if since is not None and now is not None else 0.0
    held = f" for {spell(held_s)}" if held_s >= 1 else ""
    return f"{view.leader_id} leads term {view.term}{held}." if view.leader_id else ""


def quorum_phrase(view: GroupView) -> str:
    """Whether enough members hear each other, and whether enough of these hold what is written."""
    quorum, idle = view.quorum, sorted(confirm_nothing(view))
    counted = f"{quorum.answering} of {quorum.size} answer, {quorum.needed} needed"
    if quorum.standing not in (None, 0, quorum.answering):
        counted += f"; the leader hears {quorum.standing}, itself included"
    if quorum.stands is None:
        return f"Whether the quorum stands is unknown ({counted})."
    if not quorum.stands and quorum.answering >= quorum.needed:
        if view.leader_id is None:
            return f"No member leads, so nothing is committed now ({counted})."
        return f"No quorum hears each other ({counted})."
    if not quorum.stands:
        return f"The quorum does not stand ({counted})."
    if stopped := writes_stopped(view):
        return f"Members hear each other, but no new write gets through: {stopped} ({counted})."
    if idle:
        counted += f"; {join(idle)} {'confirm' if len(idle) > 1 else 'confirms'} no new writes"
    if survives(view) == 0 and quorum.needed < quorum.size:
        return f"Quorum stands, but one more failure {'stops writes' if idle else 'ends it'} ({counted})."
    return f"Quorum stands ({counted})."
