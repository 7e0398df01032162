"""Verbs of a script about learners: members without a vote, who come and go while the group runs.

join l0 [known_to=n0,n1]    l0 starts with a new store, and every member (or only these) takes it for a learner
tell n2 join l0 / tell n2 leave l0
                        n2 alone knows it
leave l0                nobody takes l0 for a member any more; it runs on until `crash l0`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tests.scenarios.cluster import Cluster

if TYPE_CHECKING:
    from tests.scenarios.runner import Command


class Learners:
    """Carries them out. `settle`: everything under way arrives."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.verbs: Mapping[str, Callable[[Command], None]] = {
            "join": self._join, "leave": self._leave, "tell": self._tell,
        }  # fmt: skip

    def _join(self, command: Command) -> None:
        (learner,) = command.words
        voters = [one for one in self._cluster.ids if one in self._cluster.peers]
        self._cluster.start_learner(learner)
        reported = command.options.get("known_to")
        for node_id in voters if reported is None else reported.split(","):
            self._cluster.tell_of_learner(node_id, learner, joins=True)

    def _leave(self, command: Command) -> None:
        (learner,) = command.words
        for node_id in [one for one in self._cluster.ids if one != learner]:
            self._cluster.tell_of_learner(node_id, learner, joins=False)

    def _tell(self, command: Command) -> None:
        node_id, verb, learner = command.words
        self._cluster.tell_of_learner(node_id, learner, joins=verb == "join")
