"""The classifier and THE SENTENCE, as a table: what is wrong with the group -> what an operator reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from app.console.verdict import quorum_phrase
from app.health import facts
from app.health.advice import ADVICE, ALARM
from app.health.audited import open_audit
from app.health.facts import spell
from app.health.group_view import AuditView, QuorumView
from app.health.pair_steps import ADVICE as PAIR_ADVICE
from app.times import rfc3339
from tests.unit.fake_control import FakeGroup
from tests.unit.group_story import T0, Story

Json = dict[str, Any]


def nothing(story: Story) -> None:
    story.look(3)


def killed_follower(story: Story) -> None:
    story.look()
    story.node("n2").alive = False
    story.node("n2").ack_ms = 60_000
    story.look(82)


def silent_control_plane(story: Story) -> None:
    story.look()
    story.node("n2").alive = False
    story.look(10)


def paused_engine(story: Story) -> None:
    story.look()
    story.node("n2").engine, story.node("n2").ack_ms = "stale", 9_000
    story.look(10)


def engine_down(story: Story) -> None:
    story.node("n1").engine, story.node("n1").ack_ms = "down", 9_000
    story.look(10)


def never_reached(story: Story) -> None:
    story.node("n2").alive, story.node("n2").ack_ms = False, None
    story.look(10)


def nobody(story: Story) -> None:
    story.look()
    for one in story.group.nodes.values():
        one.alive = False
    story.look(10)


def nobody_ever(story: Story) -> None:
    for one in story.group.nodes.values():
        one.alive = False
    story.look(3)


def quorum_lost(story: Story) -> None:
    story.look()
    for node_id in ("n1", "n2"):
        story.node(node_id).alive, story.node(node_id).ack_ms = False, 9_000
    story.node("n0").role = "CANDIDATE"
    story.look(10)


def quorum_out_of_sight(story: Story) -> None:
    """The console is beside n0, which is cut off from n1 and n2, as the console is."""
    story.why_silent = "http://n1 did not answer in time"
    quorum_lost(story)


def disk_nearly_full(story: Story) -> None:
    story.node("n1").disk = {"total_bytes": 10**12, "free_bytes": 4 * 10**9, "used_ratio": 0.996}
    story.node("n2").disk = {"total_bytes": 10**12, "free_bytes": 6 * 10**9, "used_ratio": 0.994}
    story.look(10)


def without_a_directory(*ids: str) -> Callable[[Story], None]:
    def happened(story: Story) -> None:
        for node_id in ids:
            reason = f"[Errno 2] No such file or directory: '/data/{node_id}/dledger-{node_id}'"
            story.node(node_id).unknown = [{"field": "disk", "reason": reason, "since": None}]
            story.node(node_id).disk = {"total_bytes": None, "free_bytes": None, "used_ratio": None, "full": False}
        story.look(10)

    return happened


OTHER_SECRET = "what answers there does not prove the members' secret: it has another secret"


def refuses(story: Story, node_id: str, *others: str, why: str = OTHER_SECRET) -> None:
    """Of connections with them it says so, as both ends of each do."""
    one = story.node(node_id)
    one.apart_from = [*others]
    one.alarms = [
        {"code": "unproven_member", "severity": "warning", "peer_id": peer, "text": f"{peer} at {peer}:1: {why}",
         "since": rfc3339(T0)} for peer in others
    ]  # fmt: skip


def clocks(**ahead_s: float) -> Callable[[Story], None]:
    def happened(story: Story) -> None:
        story.clocks_s = ahead_s
        story.look(10)

    return happened


def another_secret(story: Story) -> None:
    """n1 has another one: both ends of both its connections say so."""
    story.look()
    refuses(story, "n0", "n1")
    refuses(story, "n1", "n0", "n2")
    refuses(story, "n2", "n1")
    one, state = story.node("n1"), story.node("n1").state
    one.ack_ms, one.state = None, lambda: {**state(), "role": "CANDIDATE", "leader_id": None}  # type: ignore[method-assign]
    story.look(10)


def another_group(story: Story) -> None:
    """Its member listens at n2's address, and its control plane where n2's was."""
    for one in ("n0", "n1"):
        refuses(story, one, "n2", why="it belongs to another group: its id is 2e2e")
    story.why_silent = "http://n2:8433 belongs to another group of this name"
    never_reached(story)


def looks_at_wrong_addresses(story: Story) -> None:
    """n1's own configuration exchanges two addresses; the others reach it, and it follows."""
    story.look()
    refuses(story, "n1", "n0", "n2", why="what answers there does not prove the members' secret: it proves to be n9")
    story.look(10)


def exchanged_two_addresses(story: Story) -> None:
    """The same, and each member says where it is itself."""
    story.node("n1").looks_for = {"n0": "127.0.0.1:20913", "n2": "127.0.0.1:20911"}
    looks_at_wrong_addresses(story)


def has_an_old_address(story: Story) -> None:
    """Nobody's address is no other member's."""
    story.node("n1").looks_for, story.node("n1").apart_from = {"n2": "127.0.0.1:20999"}, ["n2"]
    story.look(10)


def warns_of_whom_it_lets_in(story: Story) -> None:
    """A group gets its first secret: n1 has none yet."""
    refuses(story, "n0", "n1")
    refuses(story, "n2", "n1")
    story.node("n0").apart_from, story.node("n2").apart_from = [], []
    story.look(10)


def leader_without_acks(story: Story) -> None:
    story.look()
    for node_id in ("n1", "n2"):
        story.node(node_id).ack_ms = 9_000
    story.look(6)


def no_leader(story: Story) -> None:
    story.look()
    story.node("n0").role = "CANDIDATE"
    story.node("n1").role = story.node("n2").role = "FOLLOWER"
    story.look(8)


def leader_unseen(story: Story) -> None:
    story.look()
    leader = story.node("n0")
    story.look()
    state = leader.state()
    leader.alive = False
    for node_id in ("n1", "n2"):
        story.group.nodes[node_id].state = lambda node_id=node_id: {  # type: ignore[method-assign,misc]
            **state,
            "self_id": node_id,
            "role": "FOLLOWER",
            "leader_id": "n0",
        }
    story.look(10)


def split_brain(story: Story) -> None:
    story.node("n1").role = "LEADER"
    story.look()


def serves_with_an_old_certificate(story: Story) -> None:
    story.certificate_ends = {"n0": T0 + timedelta(days=90), "n1": T0 + timedelta(days=12, minutes=1)}
    story.look(3)


def serves_with_a_certificate_that_ended(story: Story) -> None:
    story.certificate_ends = {"n1": T0 - timedelta(minutes=4)}
    story.look(3)


def cut_off(story: Story) -> None:
    story.node("n1").ack_ms = 12_000
    story.look(5)


def without_votes(story: Story) -> None:
    story.group.lead(None)
    for one in story.group.nodes.values():
        one.role, one.voter_state, one.heard_ms = "CANDIDATE", "REJOINING", dict.fromkeys(story.group.nodes, 60_000)
    story.look(6)


def without_enough_votes(story: Story) -> None:
    without_votes(story)
    story.node("n0").voter_state = "VOTER"
    story.look(6)


def moved_to_a_wrong_address(story: Story) -> None:
    story.look(2)
    story.node("n1").sought_at, story.node("n1").ack_ms = "127.0.0.1:9", None
    story.look(8)


def just_back(story: Story) -> None:
    story.node("n1").ack_ms = 12_000
    story.look(2)
    story.node("n1").ack_ms = 5
    story.look()


def snapshot(story: Story) -> None:
    story.node("n0").end = story.node("n1").end = 49_100
    story.node("n2").dispatcher, story.node("n2").dispatcher_since = (
        "INSTALL_SNAPSHOT",
        rfc3339(T0 - timedelta(seconds=30)),
    )
    story.look(17, story.grow(n0=0))


def snapshot_under_way(story: Story) -> None:
    story.node("n2").snapshot_sent = {"index": 49_000, "held_bytes": 2_000_000, "total_bytes": 8_000_000}
    snapshot(story)


def falling_behind(story: Story) -> None:
    story.look(20, story.grow(n0=1000, n1=1000, n2=100))


def catching_up(story: Story) -> None:
    story.node("n0").end = story.node("n1").end = 101_000
    story.look(21, story.grow(n2=1000))


def briefly_behind(story: Story) -> None:
    story.look(3)
    story.node("n0").end = story.node("n1").end = 5_000
    story.look(2, story.grow(n0=0))


def idle_then_one_write(story: Story) -> None:
    story.look(30)
    story.node("n0").end += 1
    story.node("n1").lag_ms = story.node("n2").lag_ms = 12
    story.look(2)


def diverged(story: Story) -> None:
    story.node("n2").dispatcher, story.node("n2").dispatcher_since = "DIVERGED", rfc3339(T0 - timedelta(minutes=5))
    story.look()


def comparing(story: Story) -> None:
    story.node("n2").dispatcher, story.node("n2").dispatcher_since = "COMPARE", rfc3339(T0 - timedelta(seconds=7))
    story.node("n2").transitions = [{"at": rfc3339(T0), "from": "APPEND", "to": "COMPARE", "reason": "resend timeout"}]
    story.look()


def comparing_a_moment(story: Story) -> None:
    story.node("n2").dispatcher, story.node("n2").dispatcher_since = "COMPARE", rfc3339(T0 - timedelta(seconds=1))
    story.look()


def loop(story: Story) -> None:
    story.node("n2").transitions = [
        {"at": rfc3339(T0 - timedelta(seconds=age)), "from": "COMPARE", "to": "INSTALL_SNAPSHOT", "reason": "x"}
        for age in (50, 40, 30, 20, 10, 500)
    ]
    story.look()


def disk_alarm(story: Story) -> None:
    story.node("n1").alarms = [{"kind": "disk_low", "detail": "3 % left", "since": rfc3339(T0)}]
    story.look()


def disk_full(story: Story) -> None:
    story.node("n1").alarms = ["disk_full"]
    story.look()


def disk_full_by_its_leader(story: Story) -> None:
    """The member itself has not said it, or not yet."""
    story.node("n0").alarms = [{"code": "peer_disk_full", "severity": "critical", "peer_id": "n1", "text": "n1: full"}]
    story.look()


def disk_full_by_both(story: Story) -> None:
    story.node("n1").alarms = ["disk_full"]
    disk_full_by_its_leader(story)


def damage(story: Story, **repair: Any) -> None:
    one = story.node("n1")
    one.faults = [{"first_index": 5, "last_index": 7, "kind": "crc_invalid", "detail": ""}]
    one.repair = {"peer_id": None, "hopeless": 0, **repair}
    one.alarms = [{"code": "log_damaged", "severity": "critical", "since": rfc3339(T0)}]
    story.look(3)


def being_repaired(story: Story) -> None:
    damage(story, peer_id="n2")


def mended_alone(story: Story) -> None:
    """A sound record whose index record is wrong needs no peer."""
    damage(story, peer_id="n1")


def waiting_for_repair(story: Story) -> None:
    damage(story)


def unrecoverable(story: Story) -> None:
    damage(story, hopeless=1)


def rejoining(story: Story) -> None:
    story.node("n1").voter_state = "REJOINING"
    story.look(20)


def piling(story: Story) -> None:
    story.group.closures |= {"pending": 8_500, "oldest_age_ms": 640}
    story.look()


def refused(story: Story) -> None:
    story.group.closures |= {"pending": 10_000, "oldest_age_ms": 2_000}
    story.look()


def slow(story: Story) -> None:
    story.group.closures |= {"pending": 3, "oldest_age_ms": 4_200}
    story.look()


def one_slow(story: Story) -> None:
    story.group.closures |= {"pending": 1, "oldest_age_ms": 1_600}
    story.look()


def stalled_with_one(story: Story) -> None:
    story.look(2)
    story.node("n0").end = 1_001
    story.look(8)


def stalled(story: Story) -> None:
    story.look(2)
    story.node("n0").end = 1_010
    story.look(8)


def flapping(story: Story) -> None:
    def step() -> None:
        story.group.term += 1

    story.look(20, step)


def one_failover(story: Story) -> None:
    story.look(4)
    story.group.lead("n1")
    story.look()
    story.group.lead("n2")  # the first vote was split
    story.look(4)


def an_old_term_comes_back(story: Story) -> None:
    story.group.lead("n1")
    story.look(2)
    story.group.term -= 1
    story.look(20)
    story.group.term += 1
    story.look(20)


def cut_off_and_asking(story: Story) -> None:
    story.node("n2").ack_ms, story.node("n2").role = 12_000, "CANDIDATE"
    story.look(2)


def deaf_on_one_way(story: Story) -> None:
    story.node("n1").heard_ms["n0"] = 6_000
    story.look(3)


def mute_on_one_way(story: Story) -> None:
    story.node("n1").ack_ms, story.node("n1").heard_ms["n0"] = 6_000, 20
    story.look(3)


def heard_a_while_ago(story: Story) -> None:
    story.node("n1").ack_ms = 450
    story.look(3)


def slow_one(story: Story) -> None:
    story.node("n2").rtt_ms = 250
    story.look(6)


def slow_for_a_moment(story: Story) -> None:
    story.node("n2").rtt_ms = 250
    story.look()
    story.node("n2").rtt_ms = 0.8
    story.look()


def slow_all(story: Story) -> None:
    story.node("n1").rtt_ms = story.node("n2").rtt_ms = 250
    story.look(6)


def sends_again(story: Story) -> None:
    def step() -> None:
        story.node("n2").resends += 1

    story.look(9, step)


def lacks_one_entry(story: Story) -> None:
    story.node("n0").end += 1
    story.node("n2").lag_ms, story.node("n1").end = 3_000, 1_001
    story.look(3)


def audit(verdict: str) -> Json:
    return {"verdict": verdict, "finished_at": rfc3339(T0 - timedelta(minutes=12)), "first": "n2, entry 4,511"}


def found_by_an_audit(story: Story) -> None:
    story.audit = audit("divergent")
    story.look(2)


def audited_in_part(story: Story) -> None:
    story.audit = audit("unauditable")
    story.look(2)


def audited_well(story: Story) -> None:
    story.audit = audit("consistent")
    story.look(2)


def audited_with_states_that_differ(story: Story) -> None:
    """It was no difference, for the verdict is about the logs."""
    story.audit = audit("consistent") | {"states_differ": True}
    story.look(2)


def asynchronous(story: Story) -> None:
    story.group.flush = "async"
    story.look()


TABLE: list[tuple[Callable[[Story], None], str, list[str], str, str]] = [
    # what happened, severity, problem codes, headline (part), rest (part)
    (nothing, "ok", [], "All 3 replicas are in step.", "Never audited."),
    (killed_follower, "attention", ["replica_silent"], "n2 is silent (connection refused), for 41 s.", "2 of 3"),
    (silent_control_plane, "attention", ["replica_silent"], "; the leader still hears it.", "Quorum stands"),
    (
        paused_engine,
        "attention",
        ["replica_silent"],
        "The engine of n2 does not answer its control plane",
        "Quorum stands",
    ),
    (engine_down, "attention", ["engine_down"], "The engine of n1 is down, for 4 s.", "Quorum stands"),
    (never_reached, "attention", ["never_reached"], "n2 has never been reached (connection refused)", ""),
    (nobody, "unknown", ["all_silent"], "No control plane of this group has answered", "stands is unknown"),
    (nobody_ever, "unknown", ["never_reached"], "has answered yet", "stands is unknown"),
    (
        quorum_lost,
        "critical",
        ["quorum_lost", "replica_silent", "replica_silent"],
        "n1 and n2 do not answer",
        "does not",
    ),
    (
        quorum_out_of_sight,
        "critical",
        ["quorum_out_of_sight", "replica_silent", "replica_silent"],
        "No quorum is in sight: n1 and n2 do not answer, and may or may not commit without n0, for",
        "is unknown",
    ),
    (
        clocks(n0=0.2, n1=3600.0, n2=-0.4),
        "attention",
        ["clock_differs"],
        "n1's clock is 60 min ahead of the others', for 4 s.",
        "Quorum stands",
    ),
    (
        clocks(n0=0.2, n1=-86400.0),
        "attention",
        ["clock_differs"],
        "n1's clock is 24 h behind the others', for 4 s.",
        "Quorum stands",
    ),
    (clocks(n0=-7200.0, n1=-7200.5, n2=-7199.0), "ok", [], "All 3 replicas are in step.", ""),  # ours is the odd one
    (clocks(n0=-45.0, n1=3.0, n2=0.0), "ok", [], "All 3 replicas are in step.", ""),
    (clocks(n1=3600.0), "ok", [], "All 3 replicas are in step.", ""),  # of two nobody can tell
    (
        another_secret,
        "attention",
        ["kept_out"],
        "n1 is not let in by n0 and n2, for 5 s: n1 at n1:1: what answers there does not prove the members' secret: it"
        " has another secret.",
        "Quorum stands",
    ),
    (
        another_group,
        "attention",
        ["kept_out"],
        "n2 is not let in by n0 and n1, for 4 s: n2 at n2:1: it belongs to another group: its id is 2e2e",
        "Quorum stands",
    ),
    (
        looks_at_wrong_addresses,
        "attention",
        ["alarm_unproven_member"],
        "n1 reports unproven member, for 5 s: n0 at n0:1: what answers there does not prove",
        "Quorum stands",
    ),
    (
        exchanged_two_addresses,
        "attention",
        ["wrong_peers"],
        "n1 looks for n0 at n2's address 127.0.0.1:20913 and n2 at n0's address 127.0.0.1:20911, for 4 s.",
        "Quorum stands",
    ),
    (has_an_old_address, "attention", ["not_connected"], "n1 has no connection to n2, for 4 s.", "Quorum stands"),
    (
        warns_of_whom_it_lets_in,
        "attention",
        ["alarm_unproven_member", "alarm_unproven_member"],
        "n0 reports unproven member",
        "Quorum stands",
    ),
    (
        without_a_directory("n1"),
        "attention",
        ["directory_gone"],
        "n1 runs without its data directory, for 4 s: [Errno 2] No such file or directory: '/data/n1/dledger-n1'.",
        "Quorum stands",
    ),
    (
        without_a_directory("n0", "n1"),
        "critical",
        ["directory_gone", "directory_gone"],
        "n0 runs without its data directory, for 4 s",
        "Quorum stands",
    ),
    (disk_nearly_full, "attention", ["disk_low"], "n1's disk is nearly full, for 4 s: 0.4% of it is free.", ""),
    (
        leader_without_acks,
        "critical",
        ["quorum_lost", "cut_off", "cut_off"],
        "The quorum is lost: n0 leads and does not hear n1 and n2",
        "No quorum hears each other",
    ),
    (no_leader, "critical", ["no_leader"], "There is no leader: no write can be accepted", "No member leads"),
    (leader_unseen, "attention", ["leader_out_of_sight", "replica_silent"], "The leader n0 does not answer", "unknown"),
    (split_brain, "critical", ["two_leaders"], "n0 and n1 both lead term 4", ""),
    (cut_off, "attention", ["cut_off"], "n1 is cut off from n0, for 14 s; it still answers here.", "Quorum stands"),
    (
        without_votes,
        "critical",
        ["votes_lost"],
        "No leader can be elected: n0, n1 and n2 may not vote, for they do not know what they had acknowledged, and 2",
        "",
    ),
    (
        without_enough_votes,
        "critical",
        ["votes_lost"],
        "No leader can be elected: n1 and n2 may not vote, for they do not know what they had acknowledged, and 2",
        "",
    ),
    (
        moved_to_a_wrong_address,
        "attention",
        ["wrong_address"],
        "The group looks for n1 at 127.0.0.1:9, as its log says, and does not reach it there; n1 says that it is at",
        "",
    ),
    (just_back, "ok", [], "All 3 replicas are in step.", ""),
    (
        snapshot,
        "attention",
        ["not_catching_up"],
        "n2 is 48,100 entries behind and not catching up: INSTALL_SNAPSHOT for 38 s.",
        "Quorum stands",
    ),
    (
        snapshot_under_way,
        "attention",
        ["not_catching_up"],
        "INSTALL_SNAPSHOT for 38 s (snapshot up to entry 49,000: 2,000,000 of 8,000,000 bytes).",
        "Quorum stands",
    ),
    (falling_behind, "attention", ["not_catching_up"], "entries behind and not catching up, for", "Quorum stands"),
    (catching_up, "attention", ["catching_up"], "79,000 entries behind and catching up, level in about 39 s.", ""),
    (briefly_behind, "unknown", [], "is not known: n2 is 4,000 entries behind, since when is unknown.", ""),
    (idle_then_one_write, "ok", [], "All 3 replicas are in step.", ""),
    (
        diverged,
        "critical",
        ["diverged"],
        "n2 has DIVERGED below what is committed; replication to it stopped 5 min",
        "",
    ),
    (comparing, "attention", ["not_append"], "The dispatcher of n2 has been in COMPARE for 7 s (resend timeout).", ""),
    (comparing_a_moment, "unknown", [], "Whether all 3 replicas are in step is not known: n2 is in COMPARE.", ""),
    (loop, "critical", ["dispatcher_loop"], "between COMPARE and INSTALL_SNAPSHOT, 5 times in the last minute", ""),
    (disk_alarm, "attention", ["alarm_disk_low"], "n1's disk is nearly full: 3 % left.", ""),
    (disk_full, "critical", ["alarm_disk_full"], "n1's disk is full.", ""),
    (disk_full_by_its_leader, "critical", ["alarm_disk_full"], "n1's disk is full, as it answered its leader n0.", ""),
    (disk_full_by_both, "critical", ["alarm_disk_full"], "n1's disk is full.", ""),
    (
        being_repaired,
        "attention",
        ["log_damaged"],
        " of its log, for 1 s: it votes, but cannot lead, does not count from entry 5 on and does not serve them; it is"
        " being repaired from n2.",
        "",
    ),
    (mended_alone, "attention", ["log_damaged"], "it is mended from what the member itself has, if that goes", ""),
    (waiting_for_repair, "attention", ["log_damaged"], "repaired as soon as a peer that holds it answers.", ""),
    (unrecoverable, "critical", ["log_damaged"], "no member of the group can give what was written", ""),
    (
        serves_with_an_old_certificate,
        "attention",
        ["node_certificate_ends"],
        "The certificate of n1's control plane ends in 12 d.",
        "Quorum stands",
    ),
    (
        serves_with_a_certificate_that_ended,
        "critical",
        ["node_certificate_ends"],
        "The certificate of n1's control plane ended 4 min ago.",
        "Quorum stands",
    ),
    (rejoining, "attention", ["voter_restricted"], "n1 came back without its log and does not vote", ""),
    (piling, "attention", ["closures_piling"], "8,500 writes wait, of at most 10,000, oldest 0.6 s.", ""),
    (refused, "critical", ["closures_full"], "10,000 writes wait, the limit: new ones are refused, oldest 2.0 s.", ""),
    (slow, "attention", ["closures_slow"], "3 writes wait, oldest 4.2 s.", ""),
    (one_slow, "attention", ["closures_slow"], "1 write waits, oldest 1.6 s.", ""),
    (stalled_with_one, "critical", ["commit_stalled"], "has not moved from 1,000 for 3 s, 1 entry waits.", ""),
    (stalled, "critical", ["commit_stalled"], "has not moved from 1,000 for 3 s, 10 entries wait.", ""),
    (flapping, "attention", ["term_flapping"], "3 elections in the last minute.", ""),
    (one_failover, "ok", [], "All 3 replicas are in step.", "n2 leads term 6"),
    (an_old_term_comes_back, "ok", [], "All 3 replicas are in step.", ""),
    (cut_off_and_asking, "attention", ["cut_off"], "n2 is cut off from n0 and n1, for 12 s; it still answers", ""),
    (deaf_on_one_way, "attention", ["one_way"], "n1 does not hear the leader n0, which hears it: a one-way link", ""),
    (mute_on_one_way, "attention", ["one_way"], "The leader n0 does not hear n1, which hears it: a one-way link", ""),
    (heard_a_while_ago, "unknown", [], "is not known: n0 heard n1 0.5 s ago.", "Quorum stands"),
    (
        slow_one, "attention", ["slow_link"],
        "n2 answers the leader slowly, for 2 s: it takes 250 ms, the other follower 0.8 ms.", "",
    ),
    (slow_for_a_moment, "ok", [], "All 3 replicas are in step.", ""),
    (slow_all, "attention", ["slow_link"], "All followers answer the leader n0 slowly, for 2 s: they take 250 ms.", ""),
    (sends_again, "attention", ["resends"], "8 pushes to n2 were sent again in the last 10 s.", ""),
    (lacks_one_entry, "attention", ["lagging"], "n2 lacks an entry, for 4 s.", ""),
    (
        found_by_an_audit,
        "critical",
        ["audit_divergent"],
        "An audit 12 min ago found replicas that differ: n2, entry 4,511; none has shown since that they agree.",
        "Quorum stands",
    ),
    (audited_in_part, "ok", ["audit_incomplete"], "All 3 replicas are in step.", "could not compare everything"),
    (audited_well, "ok", [], "All 3 replicas are in step.", "The last audit, 12 min ago, found no difference."),
    (
        audited_with_states_that_differ, "ok", [], "All 3 replicas are in step.",
        "The last audit, 12 min ago, found equal logs, and states that differ.",
    ),
    (
        asynchronous,
        "ok",
        ["flush_async"],
        "All 3 replicas are in step.",
        "Flush is async: writes are acknowledged before",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("happened", "severity", "codes", "headline", "rest"), TABLE, ids=lambda one: getattr(one, "__name__", "")
)
def test_what_an_operator_reads(
    happened: Callable[[Story], None], severity: str, codes: list[str], headline: str, rest: str
) -> None:
    story = Story()
    happened(story)
    sentence = story.view.sentence
    assert [one.code for one in story.view.problems] == codes, sentence
    assert story.view.severity == severity
    assert headline in sentence.headline
    assert rest in sentence.rest


def test_since_stays_while_a_problem_stands_and_starts_anew_after() -> None:
    story = Story()
    story.group.closures |= {"pending": 9_000, "oldest_age_ms": 10}
    first = story.look().problems[0].since
    assert story.look(20).problems[0].since == first
    story.group.closures["pending"] = 0
    assert story.look(8).problems == ()
    story.group.closures["pending"] = 9_000
    assert story.look().problems[0].since > first


def test_an_unknown_lag_is_not_zero() -> None:
    story = Story()
    story.node("n2").alive = False
    view = story.look()
    assert view.lag_entries(view.members[2]) is None
    assert any(one.field == "state" for one in view.members[2].unknown)


def test_a_deposed_leader_does_not_colour_the_picture() -> None:
    story = Story()
    old = story.node("n0")
    stale_state = old.state()
    story.group.lead("n1")
    old.state = lambda: {**stale_state, "role": "LEADER"}  # type: ignore[method-assign]
    view = story.look()
    assert view.leader_id == "n1" and view.term == 5
    assert "two_leaders" not in [one.code for one in view.problems], "two terms, one of them over"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(-1, "0 s"), (38.9, "38 s"), (119, "119 s"), (240, "4 min"), (7500, "2 h 5 min"), (3 * 86400 + 5, "3 d")],
)
def test_ages_as_people_say_them(seconds: float, said: str) -> None:
    assert spell(seconds) == said


@pytest.mark.parametrize(
    ("alive", "acks", "leads", "stands", "standing", "answering"),
    [
        ("n0 n1 n2", {}, True, True, 3, 3),
        ("n0 n1", {}, True, True, 3, 2),
        ("n0", {}, True, True, 3, 1),  # the leader still hears both: it knows better than the console
        ("n0 n1 n2", {"n1": 9_000}, True, True, 2, 3),  # n1 answers the console, and is cut off from its leader
        ("n0 n1 n2", {"n1": 9_000, "n2": 9_000}, True, False, 1, 3),
        ("n0", {"n1": 9_000, "n2": 9_000}, True, False, 1, 1),
        ("n0 n1 n2", {"n1": None, "n2": None}, True, True, None, 3),
        ("n0", {"n1": None, "n2": None}, True, None, None, 1),
        ("n1 n2", {}, False, False, 0, 2),
        ("", {}, False, None, None, 0),
    ],
)
def test_whether_the_quorum_stands(
    alive: str, acks: dict[str, int | None], leads: bool, stands: bool | None, standing: int | None, answering: int
) -> None:
    story = Story()
    story.look()
    for one in story.group.nodes.values():
        one.alive = one.id in alive.split()
        one.ack_ms = acks.get(one.id, one.ack_ms)
    if not leads:
        story.group.lead(None)
    view = story.look(5)
    assert view.quorum == QuorumView(size=3, needed=2, answering=answering, standing=standing, stands=stands)


def test_every_problem_says_what_to_do() -> None:
    """All codes that rules write down have a next step of their own, and none leaves a gap in it."""
    sources = Path(facts.__file__).parent.glob("*.py")
    codes = {code for one in sources for code in re.findall(r'Finding\(\s*"(\w+)"', one.read_text())}
    codes -= set(PAIR_ADVICE) - set(ADVICE)  # test_pair_health.py
    brokers = {one for one in ADVICE if one.startswith("alarm_broker_")}
    alarms = {"applier_behind", "applier_diverged", "applier_down", "applier_silent", "apply_failed", "disk_full"}
    alarms |= {"snapshot_damaged", "snapshot_failed"}
    assert codes | brokers | {"engine_silent"} | {f"alarm_{one}" for one in alarms} == set(ADVICE), (
        "an alarm's code is the member's own"
    )
    for happened, *_ in TABLE:
        story = Story()
        happened(story)
        for one in story.view.problems:
            texts = [one.means, one.at_stake, one.step, one.next_step, one.command, one.docs]
            for text in texts if one.curl is None and one.node_id is None else [*texts, one.curl]:
                assert text and "{" not in text and "None" not in text, one
            assert one.member == one.node_id and "{age}" not in one.what, one


def test_every_problem_has_its_section_in_the_documentation() -> None:
    headings = re.findall(r"^## (.+)$", (Path(__file__).parents[2] / "docs/problems.md").read_text(), re.MULTILINE)
    sections = {one.lower().replace(" ", "-") for one in headings}
    assert {one.section for one in (*ADVICE.values(), ALARM)} == sections


def test_what_is_at_stake_is_said_of_the_group_as_it_is() -> None:
    story = Story()
    story.look()
    story.node("n2").ack_ms = 9_000
    (cut,) = story.look(6).problems
    assert (cut.code, cut.at_stake) == ("cut_off", "writes get through, and one more failure stops them")
    story.node("n1").ack_ms = 9_000
    lost = story.look(6).problems[0]
    assert lost.code == "quorum_lost"
    assert lost.at_stake == "no write gets through until 2 members hear each other (1 more needed)"


@pytest.mark.parametrize(
    ("code", "node", "at_stake"),
    [
        ("disk_full", "n0", "new writes are refused until n0 has room or another member leads; nothing is lost"),
        ("disk_full", "n1", "n1 confirms no new writes; writes get through, and one more failure stops them"),
        ("broker_down", "n0", "no broker of the group takes messages while n0 leads; its log takes writes"),
        ("apply_failed", "n0", "no command is taken while n0 leads, and it answers no question; nothing is lost"),
        ("applier_down", "n0", "no command is taken while n0 leads, and it answers no question; nothing is lost"),
        (
            "applier_behind", "n0",
            "no command is taken while n0 leads, and it answers no question; what no other member has of it is lost",
        ),
        ("apply_failed", "n1", "questions at n1 get no answer; writes get through, and survive 1 more failure"),
        ("broker_down", "n1", "writes get through, and survive 1 more failure"),
    ],
)  # fmt: skip
def test_what_an_alarm_costs_depends_on_who_leads(code: str, node: str, at_stake: str) -> None:
    story = Story()
    story.node(node).alarms = [{"code": code, "severity": "warning", "text": "so it is"}]
    (one,) = story.look(6).problems
    assert (one.code, one.member, one.at_stake) == (f"alarm_{code}", node, at_stake)
    assert f"`{one.command}`" in one.next_step and "do what the text says" not in one.next_step


def test_a_snapshot_that_load_refuses_has_a_way_out() -> None:
    """The engine starts the process again for ever, and it ends over the same bytes each time."""
    story = Story()
    text = "nothing is applied: EOFError: Ran out of input"
    story.node("n1").alarms = [{"code": "applier_down", "severity": "warning", "text": text}]
    (one,) = story.look(6).problems
    assert text in one.what and "`load`" in one.step and "snapshot_INDEX" in one.step


def test_what_a_deposed_leader_wrote_alone_is_what_will_be_cut() -> None:
    story = Story()
    story.look()
    old = story.node("n0")
    told = old.state()
    told["role"], told["log"]["end_index"], told["log"]["committed_index"] = "LEADER", 1151, 1000
    story.group.lead("n1")
    old.state = lambda: told  # type: ignore[method-assign]
    old.ack_ms = 9_000
    cut = next(one for one in story.look(6).problems if one.code == "cut_off")
    assert "of entries 1,001 to 1,151 on n0" in cut.at_stake and "none of them committed" in cut.at_stake


def test_a_silent_member_is_started_as_it_said_that_it_was_started() -> None:
    story = Story()
    told = story.node("n2").state() | {"started_with": "quorumscope node --config n2.toml"}
    story.node("n2").state = lambda: told  # type: ignore[method-assign]
    story.look()
    story.node("n2").alive, story.node("n2").ack_ms = False, 9_000
    (silent,) = story.look(8).problems
    assert (silent.code, silent.command) == ("replica_silent", "quorumscope node --config n2.toml")
    assert silent.curl == "curl -s http://127.0.0.1:8431/api/v1/state", "of one that answers"


def test_a_member_that_is_asked_late_is_not_heard_since_it_died() -> None:
    """On a busy machine it was asked seconds before it died: that its leader heard it meanwhile is no sign of life."""
    story = Story()
    told = story.node("n2").state() | {"started_with": "quorumscope node --config n2.toml"}
    story.node("n2").state = lambda: told  # type: ignore[method-assign]
    story.look()
    story.looked += 6  # three seconds in which this console asked nobody
    story.node("n2").alive = False
    for acked_ms in (300, 800, 1300, 1800):
        story.node("n2").ack_ms = acked_ms
        view = story.look()
    (silent,) = view.problems
    assert "still hears it" not in silent.text and silent.command == "quorumscope node --config n2.toml"


def test_a_node_that_died_behind_its_engine_is_not_one_whose_process_runs() -> None:
    """Killed, a node's control plane may outlive its engine for one sample, and say so before it is gone itself."""
    story = Story()
    told = story.node("n2").state() | {"started_with": "quorumscope node --config n2.toml"}
    story.node("n2").state = lambda: told | {"engine": story.node("n2").engine}  # type: ignore[method-assign]
    story.look()
    story.node("n2").engine, story.node("n2").ack_ms = "stale", 9_000
    story.look()
    story.node("n2").alive = False
    (silent,) = story.look(8).problems
    assert (silent.code, silent.command) == ("replica_silent", "quorumscope node --config n2.toml")
    assert silent.text.startswith("n2 is silent")


def test_a_problem_has_one_beginning_however_its_age_is_told() -> None:
    story = Story()
    story.node("n1").ack_ms = 5_000
    first = story.look().problems[0].since
    story.node("n1").ack_ms = 1_800  # heard once in between, and lost again
    assert story.look(4).problems[0].since == first


def test_what_has_just_begun_has_no_age() -> None:
    for happened, *_ in TABLE:
        story = Story()
        happened(story)
        said = [*(one.text for one in story.view.problems), story.view.sentence.headline, story.view.sentence.rest]
        assert not [text for text in said if re.search(r"(?<![\d.,])0 s\b", text)], happened.__name__


def test_old_samples_make_nothing_last_longer() -> None:
    """The leader's control plane is silent: that its commit index stands still is not known, it is only old."""
    story = Story()
    story.node("n0").end = 1_010
    story.look(2)
    story.node("n0").alive = False
    assert "commit_stalled" not in [one.code for one in story.look(2).problems]
    assert "commit_stalled" not in [one.code for one in story.look(6).problems]


def test_an_open_finding_is_closed_only_by_an_audit_as_deep_and_as_wide() -> None:
    def one(verdict: str, depth: str = "bytes", first: int | None = None, last: int | None = None) -> AuditView:
        return AuditView(state="done", verdict=verdict, depth=depth, from_index=first, to_index=last)

    bad = one("divergent")
    for newer in (one("consistent", "chain"), one("consistent", "bytes", 5), one("consistent", "bytes", None, 9)):
        assert open_audit([newer, bad]) is bad
    for newer in (one("unauditable"), one("consistent").model_copy(update={"state": "failed"})):
        assert open_audit([newer, bad]) is bad
    good = one("consistent")
    assert open_audit([good, bad]) is good
    assert open_audit([one("consistent", "digest", 0, 50), one("divergent", "digest", 10, 20)]) != bad
    assert open_audit([]) is None


def test_one_that_answers_here_and_is_not_heard_by_its_leader_does_not_hold_the_quorum() -> None:
    story = Story()
    story.look()
    story.group.nodes["n1"].ack_ms = 9_000
    view = story.look(5)
    assert "one more failure ends it (3 of 3 answer, 2 needed; the leader hears 2, itself included)" in quorum_phrase(
        view
    )


def test_a_full_disk_is_one_problem_when_an_earlier_leader_said_it_too() -> None:
    story = Story()
    said = {"code": "peer_disk_full", "severity": "critical", "peer_id": "n1", "text": "n1: its disk is full"}
    for earlier_or_present in ("n2", "n0"):
        story.node(earlier_or_present).alarms = [said]
    story.look()
    story.node("n2").alive = False
    view = story.look(12)
    assert [one.text for one in view.problems if one.id == "alarm_disk_full:n1"] == [
        "n1's disk is full, as it answered its leader n0, for 6 s."
    ]
    assert len({one.id for one in view.problems}) == len(view.problems)


@pytest.mark.parametrize("code", ["needs_snapshot", "diverged", "fork", "peer_refuses"])
def test_a_leaders_alarms_of_two_peers_are_one_problem_that_names_both(code: str) -> None:
    story = Story()
    story.node("n0").alarms = [
        {"code": code, "severity": severity, "peer_id": peer, "text": f"{peer}: why", "since": since}
        for peer, severity, since in (("n1", "info", None), ("n2", "critical", rfc3339(T0)))
    ]
    view = story.look(5)
    found = [one for one in view.problems if one.id == f"alarm_{code}:n0"]
    assert [(one.severity, one.since, one.text) for one in found] == [
        ("critical", rfc3339(T0), f"n0 reports {code.replace('_', ' ')}, for 2 s: n1: why; n2: why.")
    ]
    assert len({one.id for one in view.problems}) == len(view.problems)


def test_a_full_disk_says_since_when_by_its_members_own_word() -> None:
    story = Story()
    since = rfc3339(T0 - timedelta(seconds=60))
    story.node("n1").alarms = [{"code": "disk_full", "severity": "critical", "since": since, "text": "0 bytes left"}]
    (full,) = story.look(3).problems
    assert (full.text, full.since) == ("n1's disk is full, for 61 s: 0 bytes left.", since)
    assert full.what == "n1's disk is full: 0 bytes left.", "an event has a time of its own"


def test_a_full_disk_is_one_problem_when_its_member_fell_silent() -> None:
    story = Story()
    story.node("n1").alarms = ["disk_full"]
    story.look()
    story.node("n1").alive = False
    story.node("n0").alarms = [{"code": "peer_disk_full", "severity": "critical", "peer_id": "n1", "text": "n1: full"}]
    view = story.look(12)
    assert [one.text for one in view.problems if one.id == "alarm_disk_full:n1"] == [
        "Before it fell silent, n1 said: n1's disk is full."
    ]
    assert len({one.id for one in view.problems}) == len(view.problems)


def test_a_large_group_is_in_the_order_that_people_count_in() -> None:
    """n10 stood before n2, and a member that hears nobody was said to be cut off from 29 names."""
    story = Story(group=FakeGroup(size=30))
    lost = story.node("n2")
    others = [one for one in story.group.nodes if one != "n2"]
    lost.role, lost.ack_ms, lost.heard_ms = "CANDIDATE", 41_000, dict.fromkeys(others, 41_000)
    for one in others:
        story.node(one).heard_ms = {"n2": 41_000}
    story.look(8)
    assert [one.id for one in story.view.members] == [f"n{number}" for number in range(30)]
    (cut,) = story.view.problems
    assert cut.text.startswith("n2 is cut off from all 29 others, for ")


def test_a_member_is_where_it_says_that_it_listens() -> None:
    """Others may look for it elsewhere, in a demo at a relay: the overview named that one."""
    n1 = Story().look().member("n1")
    assert n1 is not None and n1.address == "127.0.0.1:20912"


@pytest.mark.parametrize(("happened", "code"), [(quorum_lost, "quorum_lost"), (disk_full, "alarm_disk_full")])
def test_what_goes_wrong_now_stands_before_what_an_audit_once_found(
    happened: Callable[[Story], None], code: str
) -> None:
    """A finding of last week stays open, and hid in the first sentence that the quorum was lost a minute ago."""
    story = Story()
    story.audit = audit("divergent")
    happened(story)
    codes = [one.code for one in story.view.problems]
    assert codes[0] == code and "audit_divergent" in codes
