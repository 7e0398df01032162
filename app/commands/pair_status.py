"""What `ha status` makes of the answers of a pair's brokers: the console's picture, judged by its rules. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from app.commands.standing import StatusProblem, reported
from app.console.aggregate import ClusterInfo, group_view
from app.console.pair_asking import state_of
from app.console.sample import NodeSample
from app.console.verdict import conclude
from app.health.classify import classify
from app.health.group_view import GroupView
from app.health.recall import Recall
from node.views.ha import HaView


def judged(answers: Sequence[tuple[str, HaView | str]], now: datetime, recall: Recall) -> GroupView:
    """`answers`: of each control plane; a text says why it gave none."""
    name = next((one.name for _url, one in answers if isinstance(one, HaView)), "pair")
    samples = [_sample(url, one, now) for url, one in answers]
    view = group_view(ClusterInfo(name, name, name), samples, now)
    recall.observe(view, now.timestamp(), now)
    return conclude(classify(view, recall, now, first_look=True))


def _sample(url: str, said: HaView | str, now: datetime) -> NodeSample:
    if isinstance(said, str):
        one = NodeSample(url.partition("://")[2] or url, "", url, added_at=now)
        one.problem = said
        return one
    one = NodeSample(said.self_id, said.address, url, added_at=now)
    one.ha, one.state, one.last_seen = said, state_of(said), now
    return one


def problems_of(view: GroupView) -> list[StatusProblem]:
    return [reported(one) for one in view.problems]
