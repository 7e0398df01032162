"""Every kind of problem, with the test that closes it by the command that it prints; or why no command can close it.

A new kind fails here until somebody has closed one with its own words, or has said why nobody can.
"""

from __future__ import annotations

import ast
from pathlib import Path

from app.health.advice import ADVICE, RESTART, RESTART_MACHINE, SCRUB
from app.health.pair_steps import ADVICE as PAIR_ADVICE
from app.health.pair_steps import PROMOTE

TESTS = Path(__file__).parents[1]
STEPS, PAIR = "process/test_next_steps.py::test_", "process/test_pair_next_steps.py::test_"
ACTS = ("{start}", "{members_address}", RESTART, RESTART_MACHINE, SCRUB, PROMOTE)
CLOSED_BY = {
    "cut_off": f"{STEPS}a_member_that_is_cut_off_is_healed",
    "one_way": f"{STEPS}a_link_that_is_slow_or_carries_one_way_only_is_healed",
    "slow_link": f"{STEPS}a_link_that_is_slow_or_carries_one_way_only_is_healed",
    "resends": f"{STEPS}a_link_that_is_slow_or_carries_one_way_only_is_healed",
    "not_connected": f"{STEPS}followers_without_a_connection_to_each_other_are_healed",
    "no_leader": f"{STEPS}what_is_wrong_with_the_whole_group_is_healed",
    "engines_silent": f"{STEPS}what_is_wrong_with_the_whole_group_is_healed",
    "engine_silent": f"{STEPS}an_engine_that_stands_still_is_started_again",
    "replica_silent": f"{STEPS}a_node_that_was_killed_is_started_as_it_was",
    "log_damaged": f"{STEPS}a_damaged_store_is_repaired",
    "audit_divergent": f"{STEPS}a_flipped_bit_that_an_audit_found_is_repaired",
    "wrong_address": f"{STEPS}a_member_that_is_looked_for_elsewhere_is_found_again",
    "not_applying": f"{STEPS}a_state_machine_that_hangs_is_started_again",
    "alarm_applier_silent": f"{STEPS}a_state_machine_that_hangs_is_started_again",
    "alarm_apply_failed": f"{STEPS}a_state_machine_that_raises_is_started_again_once_the_cause_is_mended",
    "ha_no_master": "process/test_demo_pair.py::test_a_lost_master_is_replaced_by_the_command_that_is_printed",
    "ha_silent": f"{PAIR}a_broker_whose_node_was_killed_is_started_as_it_was",
    "ha_log_broken": f"{PAIR}a_broker_whose_disk_failed_is_ended_and_started_on_another_one",
}
SAME_COMMAND = "the same command as that of `replica_silent`, of a member that nobody heard, or whose engine is down"
RESTARTED = "its supervisor starts it again by itself; the command shows when it is well"
OUTSIDE = "what is wrong is a machine, a disk, a network or a file of the operator's: the command shows when it is well"
OTHERS = "a consequence: the member that is waited for has a problem of its own, and its next step closes both"
BY_ITSELF = "it closes by itself, once the member has caught up; the command shows when it is well"
DECISION = "an operator has to decide what is right, and no command may: this one shows what there is to decide"
REPLACED = "a certificate comes from the operator's authority, and SIGHUP has it read (process/test_reload.py)"
BY_THE_CONSOLE = "an audit of the console's own closes it, by a button: no command line knows the console's address"
NOT_CLOSED: dict[str, str] = {
    **dict.fromkeys(("never_reached", "engine_down", "member_unreachable"), SAME_COMMAND),
    "alarm_snapshot_damaged": "it is saved again by itself once a scrub found it (unit/test_snapshot_scrub.py): in"
    " a real group the alarm is gone before its command can be pasted",
    **dict.fromkeys(("alarm_applier_down", "alarm_broker_down", "ha_broker_down"), RESTARTED),
    **dict.fromkeys(
        ("all_silent", "leader_out_of_sight", "quorum_out_of_sight", "quorum_lost", "engine_late", "alarm_disk_full",
         "alarm_snapshot_failed", "disk_low", "directory_gone", "kept_out", "clock_differs", "wrong_peers",
         "alarm_broker_dispatch_stopped", "alarm_broker_message_damaged",
         "alarm_broker_dispatch_behind", "alarm_broker_not_registered",
         "alarm_broker_schedule_behind", "term_flapping", "flush_async", "ha_all_silent", "ha_disk_full",
         "ha_config_not_saved", "ha_slave_gone", "ha_slave_not_served", "ha_refused", "ha_behind"), OUTSIDE,
    ),
    **dict.fromkeys(
        ("closures_full", "closures_piling", "closures_slow", "commit_stalled", "writes_stopped", "ha_too_few_slaves",
         "ha_no_slave", "ha_sends_wait"), OTHERS,
    ),
    **dict.fromkeys(
        ("voter_restricted", "lagging", "catching_up", "not_catching_up", "not_append", "dispatcher_loop",
         "alarm_applier_behind", "alarm_broker_not_master"), BY_ITSELF,
    ),
    **dict.fromkeys(
        ("votes_lost", "two_leaders", "diverged", "member_removed", "not_a_member", "first_leadership_hazard",
         "alarm_applier_diverged", "alarm_broker_consumers_gone", "alarm_broker_consumers_stuck",
         "alarm_broker_transactions_unanswered", "ha_two_masters", "ha_fenced", "ha_log_damaged", "ha_ahead",
         "ha_forked", "ha_stranger", "ha_unchecked"), DECISION,
    ),
    **dict.fromkeys(
        ("member_certificate_ends", "member_authority_ends", "client_certificate_ends", "node_certificate_ends"),
        REPLACED,
    ),
    "audit_incomplete": BY_THE_CONSOLE,
}  # fmt: skip
# Of commands that do something, and are not run until their problem closes.
NOT_RUN = {"never_reached", "engine_down", "member_unreachable", "alarm_snapshot_damaged"}


def test_every_kind_is_closed_by_its_command_or_says_why_it_cannot_be() -> None:
    assert not CLOSED_BY.keys() & NOT_CLOSED.keys()
    assert CLOSED_BY.keys() | NOT_CLOSED.keys() == ADVICE.keys() | PAIR_ADVICE.keys()


def test_a_command_that_does_something_is_run_until_the_problem_is_over() -> None:
    acting = {code for code, one in ADVICE.items() if one.command in ACTS or one.heals}
    acting |= {code for code, one in PAIR_ADVICE.items() if one.command in ACTS}
    assert acting - CLOSED_BY.keys() == NOT_RUN


def test_the_tests_that_close_them_are_there() -> None:
    for name in set(CLOSED_BY.values()):
        path, _, function = name.partition("::")
        tree = ast.parse((TESTS / path).read_text())
        assert function in {one.name for one in tree.body if isinstance(one, ast.FunctionDef)}, name
