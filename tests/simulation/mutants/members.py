"""Planted bugs of SAFETY M1 to M7: who belongs to the group, and who is asked.

Each is found by the simulator's invariants in worlds whose members change. Those in `BY_SCENARIO_ONLY` need what these
worlds do not have; `tests/unit/test_members_planted.py` finds them, and the others too, by scenarios of their own.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored, left_out, swapped
from tests.simulation.mutants.retention import TRIMS, TRUNCATION
from tests.simulation.mutants.snapshots import MOVED
from tests.simulation.swarm import FAULTS

CORE = "node.consensus."
CHANGES = CORE + "member_changes:MemberChanges."
LOG = CORE + "configurations:Configurations."
RECONFIGURATION = CORE + "reconfiguration:Reconfiguration."
MEMBERSHIP = CORE + "membership:Membership."
ELECTOR = CORE + "leader_elector:LeaderElector."
CHANGING: dict[str, Any] = {"membership": 8.0, "appends": 15.0, "reads": 5.0}
ALONE: dict[str, Any] = {**dict.fromkeys((name for name, _, _ in FAULTS), 0.0), **CHANGING, "membership": 15.0}
CRASHING: dict[str, Any] = {**ALONE, "crash": 4.0, "partition": 2.0, "isolate_leader": 2.0, "partition_ms": 200.0}
TWO: dict[str, Any] = {**CRASHING, "members": 2, "members_most": 2, "flush_sync": True}
TRIMMED_MEMBERS: dict[str, Any] = {
    **TRIMS, "membership": 3.0, "isolate_leader": 3.0, "partition_ms": 200.0, "crash": 3.0,
}  # fmt: skip

BROKERS: dict[str, Any] = {**CHANGING, "broker": True, "appends": 40.0}
TRIMMED_BROKERS: dict[str, Any] = {**BROKERS, **TRIMS, "membership": 12.0, "appends": 60.0, "left_behind": 0.5}
MOVED_MEMBERS: dict[str, Any] = {**MOVED, "membership": 10.0, "members_most": 5, "wipe": 0.3}

CHANGES_OF_MEMBERS = (
    Mutant(
        "old_members_until_commit", "M1", "a change is judged by the members before it until it is committed",
        (swapped(
            RECONFIGURATION + "log_changed", "in_effect is not self._from_log",
            "in_effect is not self._from_log and in_effect.index <= member.committed_index",
        ),),
        CHANGING,
    ),
    Mutant(
        "cut_keeps_members", "M1", "members whose entry was cut stay in effect",
        (swapped(LOG + "cut", "[one for one in self._in_log if one.index < cut_index]", "list(self._in_log)"),),
        CHANGING,
    ),
    Mutant(
        "start_from_birth", "M1", "a start takes the members of the birth",
        (ignored(LOG + "__init__", "place is not None"),),
        CHANGING,
    ),
    Mutant(
        "trimmed_record_counts", "M1", "what never came counts once the log begins behind its place",
        (
            ignored(TRUNCATION, "not self._holds_what_is_named(begin_index, hard)"),
            ignored(CORE + "member_state:MemberState.advance_commit", "index >= self.configurations.expected_index"),
        ),
        TRIMMED_MEMBERS,
    ),
    Mutant(
        "forgotten_before_durable", "M1", "members before a committed change are forgotten before that is durable here",
        (swapped(LOG + "committed", "min(index, durable_index)", "index"),),
        {**CRASHING, "power_loss": 8.0, "flush_sync": False},
    ),
    Mutant(
        "announced_is_in_effect", "M1", "what was written down is taken for what the log holds",
        (Edit(LOG + "_place_of", "return None", "return MUTANT.instead(None, index)"),),
        CHANGING,
    ),
    Mutant(
        "appended_unrecorded", "M1", "a follower appends a change before it is on its record",
        (Edit(RECONFIGURATION + "on_record", "return False", "return MUTANT.instead(False, True)"),),
        CHANGING,
    ),
    Mutant(
        "two_changes_pending", "M2", "a change is proposed while the one before is not committed",
        (ignored(
            CHANGES + "_busy",
            "self.waits_for_record or self._member.configuration.index > self._member.committed_index",
        ),),
        CHANGING,
    ),
    Mutant(
        "change_before_own_entry", "M2", "a new leader changes members before it has committed anything",
        (ignored(CHANGES + "_busy", "not leadership.own_entry_committed"),),
        CHANGING,
    ),
    Mutant(
        "unknown_candidates_refused", "M3", "who is not in the own configuration gets no vote",
        (swapped(
            ELECTOR + "_judge", "not member.configurations.knows(vote.candidate_id)",
            "vote.candidate_id not in member.configuration.voters",
        ),),
        CRASHING,
    ),
    Mutant(
        "lagging_learner_gives_no_vote", "M3", "a voter whose own log does not say so yet gives no vote",
        (swapped(ELECTOR + "_judge", "member.voter_state is VoterState.VOTER", "member.has_vote"),),
        CRASHING,
    ),
    Mutant(
        "learner_is_voter", "M4", "a new member is a voter at once",
        (swapped(
            LOG + "_take", "Configuration.at_entry(index, named, self._birth)",
            "Configuration({**Configuration.at_entry(index, named, self._birth).members}, index=index)",
        ),),
        CHANGING,
    ),
    Mutant(
        "lagging_learner_promoted", "M4", "a learner is promoted whatever it lacks",
        (ignored(CHANGES + "_unsafe", "not self.caught_up(change.member_id)"),),
        CHANGING,
    ),
    Mutant(
        "removed_leader_counts_itself", "M5", "a leader that removed itself counts itself on",
        (swapped(
            CORE + "configuration:Configuration.reached_by",
            "[own, *others] if own_id in self.voters else others", "[own, *others][: len(self.voters)]",
        ),),
        CHANGING,
    ),
    Mutant(
        "removed_leader_stays", "M5", "a leader that removed itself leads on for ever",
        (left_out(CHANGES + "tick", "self._leave(now)"),),
        ALONE,
    ),
    Mutant(
        "leaving_voter_gives_up", "M5", "a leader whose removal only its own log holds does not campaign again",
        (swapped(LOG + "may_campaign", "member_id in before.voters", "False"),),
        TWO,
    ),
    Mutant(
        "removed_member_unseats", "M5, E3, E4", "a removed member is let in, and raises everybody's term",
        (
            ignored(
                MEMBERSHIP + "_judge",
                "self._member.configurations.was_removed(hello.node_id, hello.store_id)",
            ),
            ignored(ELECTOR + "_judge_pre", "member.leader_alive(now)"),
            ignored(
                ELECTOR + "_judge",
                "vote.ledger_end_term == store.end_term and vote.ledger_end_index < store.end_index",
            ),
            ignored(ELECTOR + "_judge_real", "member.leader_alive(now) and not self._ticket_valid(vote)"),
        ),
        CHANGING,
    ),
    Mutant(
        "removed_store_comes_back", "M5", "a member that was removed comes back with what it had",
        (
            ignored(
                MEMBERSHIP + "_judge",
                "self._member.configurations.was_removed(hello.node_id, hello.store_id)",
            ),
            ignored(
                CHANGES + "caught_up",
                "peer.hello is None or self._member.configuration.named.removed.get(member_id)"
                " == peer.hello.store_id",
            ),
        ),
        ALONE,
    ),
    Mutant(
        "strangers_let_in", "M7, C9", "who does not know the group's id is let in as a member",
        (
            ignored(MEMBERSHIP + "_judge", "None not in (group_id, hello.group_id) and hello.group_id != group_id"),
            ignored(
                MEMBERSHIP + "_may_be_ahead",
                "hello.group_id is None or hello.group_id not in known or sender == member.self_id",
            ),
        ),
        CHANGING,
    ),
    Mutant(
        "new_voter_silent_since_birth", "E6, M3", "a new voter's silence counts from the leadership's begin",
        (left_out(RECONFIGURATION + "configure", "leadership.voter_came(peer, now)"),),
        TWO,
    ),
)  # fmt: skip
OF_KINDS = (
    Mutant(
        "changes_unseen_in_kinds", "M1", "who belongs to a broker group is not looked for in what a leader sends",
        (swapped(CORE + "own_entries:may_hold_change", "len(_change_offsets(kind, slab)) > 0", "False"),
         swapped(
            CORE + "own_entries:may_hold_change", "slab.data[_CHANNEL_AT] == Channel.CONFIG_CHANGE", "False",
        )),
        BROKERS,
    ),
    Mutant(
        "kinds_members_before_forgotten", "M1", "a base says who belonged to the group when its log began before",
        (ignored(LOG + "committed", "self._keeps_past"),),
        TRIMMED_BROKERS,
    ),
    Mutant(
        "snapshot_with_the_bases_members", "M1, M6", "a snapshot says who belonged to the group where the log begins",
        (swapped(
            CORE + "snapshot_giving:SnapshotGiving._part", "member.configurations.at(meta.index) or base.members",
            "base.members",
        ),),
        MOVED_MEMBERS,
    ),
    Mutant(
        "snapshot_with_the_newest_members", "M1, M6", "a snapshot says who belongs to the group now",
        (swapped(
            CORE + "snapshot_giving:SnapshotGiving._part", "member.configurations.at(meta.index)",
            "next(reversed(member.configurations.records), None)",
        ),),
        MOVED_MEMBERS,
    ),
)  # fmt: skip
ENDED = CORE + "ended_groups:"
BY_SCENARIO_ONLY = (
    Mutant(
        "left_behind_keeps_its_vote", "C9, E8", "who hears that its group went on without it votes on in the old one",
        (swapped(
            ENDED + "gives_up_vote", "alone and member.voter_state is VoterState.VOTER", "False",
        ),),
    ),
    Mutant(
        "ended_id_refused_silently", "C9", "who still has an id that the group had does not hear that it went on",
        (swapped(ENDED + "with_verdict", "refusal(member, asked) is not None", "False"),),
    ),
    Mutant(
        "ended_said_to_a_working_group", "C9, E8", "a group that works gives up its votes at the word of one that left",
        (swapped(
            ENDED + "gives_up_vote", "member.role is not Role.LEADER and not member.has_followed", "True",
        ),),
    ),
    Mutant(
        "ended_believed_unproven", "C9, C11", "anybody who reaches a member may have it give up its vote",
        (ignored(
            ENDED + "gives_up_vote",
            "sender not in member.configuration.voters or (member.config.proof_wanted and not answer.proven)",
        ),),
    ),
    Mutant(
        "members_change_beside_plain", "C8", "members change while a plain DLedger process stands in the group",
        (ignored(CHANGES + "refusal", "self._membership.strangers.plain"),),
    ),
    Mutant(
        "unread_record_stays", "M1, S6", "what is on record stays in effect where another entry is in its place",
        (ignored(CORE + "disk_reports:DiskReports.mended", "member.configurations.mended(self._store)"),),
    ),
    Mutant(
        "unread_record_forgets", "M1, S6", "who belonged to the group is forgotten over a record that cannot be read",
        (ignored(LOG + "committed", "self._in_log[1].index in self._unread"),),
    ),
)  # fmt: skip
