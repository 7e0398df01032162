"""What each problem means and what to do about it: the table behind `next_steps`, one row a code.

`step` is a sentence without its command; `command` and `curl` run as they are printed; `section` is a heading of
docs/problems.md. `{…}` is filled in by `next_steps`. Invariant: every code that a rule writes down has a row (a test
asks), and every section exists (another one asks).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from app.health.advice_row import Advice
from app.health.broker_advice import BROKER_ADVICE

LEADER_STATUS: Final = "{leader_status}"
CLOSURES: Final = "curl -s {leader_url}/api/v1/closures"
DISPATCHERS: Final = "curl -s {leader_url}/api/v1/dispatchers"
MEMBERS: Final = "{members}"
MEMBERS_CURL: Final = "curl -s {leader_url}/api/v1/members"
SCRUB: Final = "quorumscope scrub --node {own_url}"
RESTART: Final = "quorumscope restart --node {there}"
RESTART_CURL: Final = "curl -X POST {there}/api/v1/restart -H 'Content-Type: application/json'"
RESTART_MACHINE: Final = "quorumscope restart --state-machine --node {own_url}"
RESTART_MACHINE_CURL: Final = (
    "curl -X POST {own_url}/api/v1/restart -H 'Content-Type: application/json' -d '{{\"what\":\"state_machine\"}}'"
)
SCRUB_CURL: Final = "curl -X POST {own_url}/api/v1/scrub -H 'Content-Type: application/json'"
START: Final = Advice(
    "{node} does not answer where it should: its process is gone, its machine is, or the way there is cut",
    "look at {node}'s output and at engine-refused.json in its data directory, then start it again; later starts need"
    " no --init",
    "a-member-does-not-answer",
    command="{start}",
)
NETWORK: Final = Advice(
    "frames between {node} and {leader} do not pass, or pass one way only; `links` in the state says who hears whom",
    "look at the network between {node} and {leader}, both ways, and whether {node} is where `quorumscope members list`"
    " says (`members address` changes that); it is well when this ends with 0",
    "a-member-is-cut-off",
    heals=True,
)
NOT_APPLYING: Final = Advice(
    "{node}'s state machine does not take what is committed: its process hangs, is slow, or applies what it had again",
    "see in {node}'s output and at its process `node.state_machine` what holds it up; where it does not go on by"
    " itself this ends it, and its engine starts it again from its newest snapshot",
    "a-state-machine-does-not-apply",
    command=RESTART_MACHINE, curl=RESTART_MACHINE_CURL, actions=("restart_machine",),
)  # fmt: skip
ENGINE_SILENT: Final = Advice(
    "{node}'s process runs, but its engine does not come to answer: it is stopped, or its machine is",
    "look on {where} what holds it up (a debugger, SIGSTOP, a disk that hangs, which nothing here ends); this ends"
    " the engine and starts it again, and nothing that was acknowledged is lost with it",
    "a-member-does-not-answer", command=RESTART, curl=RESTART_CURL, heals=True, actions=("restart",),
)  # fmt: skip
OUT_OF_SIGHT: Final = Advice(
    "who leads, or may lead, does not answer here: writes may go on, unseen from this machine",
    "look whether its control plane runs, and from its side of the network: nothing is lost until that is known",
    "a-member-does-not-answer",
)
QUORUM: Final = Advice(
    "fewer than {needed} members hear each other, and only {needed} together may commit",
    "start members, or mend their network, until {needed} of them hear each other; this names who does not answer",
    "the-quorum-is-lost",
)
WAITS: Final = Advice(
    "writes are accepted, and the members that would have to confirm them do not",
    "see for whom the writes wait, and bring that member back",
    "writes-wait",
    command=LEADER_STATUS,
    curl=CLOSURES,
)
BEHIND: Final = Advice(
    "{node} lacks entries that the leader has; what the quorum committed is safe without it",
    "look at its link and its disk; the second line says what is sent to it and what comes back",
    "a-follower-is-behind",
    command=LEADER_STATUS,
    curl=DISPATCHERS,
)

ADVICE: Final[dict[str, Advice]] = {
    "never_reached": START,
    "all_silent": Advice(
        "nothing is known of this group now: its nodes are gone, or this machine does not reach them",
        "look whether the nodes run and whether this machine reaches them",
        "a-member-does-not-answer",
    ),
    "engines_silent": Advice(
        "the nodes' processes run, but none of their engines comes to answer: they are stopped, or their machine is",
        "look what holds them up (a debugger, SIGSTOP, a disk that hangs); it is well when this ends with 0",
        "a-member-does-not-answer",
        heals=True,
    ),
    **dict.fromkeys(("replica_silent", "engine_down", "member_unreachable"), START),
    "engine_silent": ENGINE_SILENT,
    "quorum_lost": QUORUM,
    "no_leader": Advice(
        "no member leads, and only a leader may take writes in",
        "a leader is elected within a second once {needed} members hear each other; this says which do not",
        "nobody-leads",
        heals=True,
    ),
    **dict.fromkeys(("leader_out_of_sight", "quorum_out_of_sight"), OUT_OF_SIGHT),
    "votes_lost": Advice(
        "a vote of who lost history could elect a leader that lacks entries; waiting brings no leader",
        "put back their own disks; else stop all, and give a majority, the newest log among them, `quorumscope store"
        " repair DIR --accept-loss`; this shows where each log ends",
        "a-member-that-does-not-vote",
    ),
    "two_leaders": Advice(
        "two members lead the same term, which Raft excludes: somebody's stored vote was lost, copied or edited",
        "stop writing and audit at once; keep all data directories",
        "two-leaders",
        command="{audit}",
        actions=("audit",),
    ),
    "diverged": Advice(
        "{node} and the leader hold different entries below what is committed; nothing was cut",
        "compare the histories before you repair anything",
        "two-histories",
        command="{audit}",
        actions=("audit",),
    ),
    "wrong_address": Advice(
        "the group's log has another address of {node} than {node} itself, and nobody of the group reaches it there",
        "where {node} is to stay there, this tells the group so; else start it with [peers] that say what the log says",
        "a-member-is-cut-off",
        command="{members_address}",
    ),
    **dict.fromkeys(("cut_off", "one_way", "not_connected"), NETWORK),
    "slow_link": Advice(
        "frames to {node} and back are on their way for far too long, or {node} comes late to answer",
        "measure the way to {node} (`ping`, `ss -ti`) and its load; if it leads, move leadership away",
        "a-slow-member",
        command=LEADER_STATUS,
        actions=("transfer",),
        heals=True,
    ),
    "engine_late": Advice(
        "{node}'s process is not given the processor in time: its machine is busy, or stops for moments",
        "look at the load of {node}'s machine (`uptime`, `vmstat 1`: processor, steal, swap); it is well when this"
        " ends with 0",
        "a-slow-member",
        command=LEADER_STATUS,
        actions=("transfer",),
    ),
    "resends": Advice(
        "pushes to {node} are not acknowledged in time and are sent again",
        "look for losses on the way to {node}, and at its disk",
        "a-slow-member",
        command=LEADER_STATUS,
        curl=DISPATCHERS,
        heals=True,
    ),
    "log_damaged": Advice(
        "{node}'s disk returns something else than was written there",
        "it is mended from a peer by itself; to read all of it again and mend it at once",
        "damaged-entries",
        command=SCRUB,
        curl=SCRUB_CURL,
        actions=("scrub",),
    ),
    "voter_restricted": Advice(
        "{node} does not know what it had acknowledged, so that its vote could elect a leader that lacks entries",
        "wait until a leader has brought it back; this says when it is a VOTER again",
        "a-member-that-does-not-vote",
    ),
    "member_removed": Advice(
        "the group goes on without {node}: nothing is sent to it, and its vote counts nowhere",
        "stop it, and keep its directory until you need it no more; its id comes back only with an empty one. This"
        " shows who belongs to the group",
        "a-member-was-removed",
        command=MEMBERS,
        curl=MEMBERS_CURL,
    ),
    "not_a_member": Advice(
        "{node} is asked here because somebody named it; nothing is sent to it, and its vote counts nowhere",
        "add it (`quorumscope members add`; one that was a member before, with an empty directory), or stop it."
        " This shows who belongs to the group",
        "a-member-was-removed",
        command=MEMBERS,
        curl=MEMBERS_CURL,
    ),
    "lagging": BEHIND,
    "catching_up": Advice(
        "{node} was away or slow, and is being sent what it missed",
        "wait; this ends with 0 once it is level",
        "a-follower-is-behind",
        command=LEADER_STATUS,
        curl=DISPATCHERS,
    ),
    "not_catching_up": BEHIND,
    "not_append": Advice(
        "the leader and {node} have not agreed yet from where on to replicate",
        "look at its last transitions",
        "a-follower-is-behind",
        command=LEADER_STATUS,
        curl=DISPATCHERS,
    ),
    "dispatcher_loop": Advice(
        "the leader trims its log faster than {node} installs what is left",
        "keep more of the log, or write less until {node} is level",
        "a-follower-is-behind",
        command=LEADER_STATUS,
        curl=DISPATCHERS,
    ),
    "closures_full": WAITS,
    "closures_piling": WAITS,
    "closures_slow": WAITS,
    "commit_stalled": WAITS,
    "writes_stopped": Advice(
        "{needed} members have to hold a write before it counts; so many hear each other, and fewer of them take it in",
        "mend what keeps each of those named from confirming: every one has a problem of its own that says how; this"
        " names them again, and ends with 0 once it is well",
        "writes-wait",
        command=LEADER_STATUS,
        curl=DISPATCHERS,
    ),
    "not_applying": NOT_APPLYING,
    "alarm_applier_down": Advice(
        "the process of {node}'s state machine ended; its engine starts it again by itself, from its snapshot",
        "see {node}'s output for what ended it. Where its `load` refuses the newest snapshot (an earlier release took a"
        " save of no bytes for one): move leadership away where {node} leads, end {node}, move that `snapshot_INDEX`"
        " out of its `snapshot` directory and keep it, and start {node} again: it applies its log from the one before,"
        " or is sent its leader's state; it is well when this ends with 0",
        "a-state-machine-does-not-apply",
        actions=("transfer",),
    ),
    "alarm_applier_silent": replace(
        NOT_APPLYING, means="the process of {node}'s state machine answers no question: it hangs, or is too busy"
    ),
    "alarm_apply_failed": replace(
        NOT_APPLYING,
        means="{node}'s state machine raised at an entry, or that entry cannot be read there; it is never skipped",
        step="mend what the problem's text names, on all members alike; then this starts its state machine again",
    ),
    "alarm_applier_behind": Advice(
        "{node}'s state ends before its log begins, and what lies between is nowhere on it: it keeps its log and its"
        " vote, and answers no question of the state",
        "the leader sends {node} its own state by itself; where {node} leads, move leadership away first; it is well"
        " when this ends with 0",
        "a-state-machine-does-not-apply",
        actions=("transfer",),
    ),
    "alarm_applier_diverged": Advice(
        "{node}'s snapshots go up to an entry that its log does not have: they are of another group or of another"
        " history, so its state is not believed; it keeps its log and its vote",
        "where {node} leads, move leadership away first; then end {node}, move its `snapshot` directory away, and start"
        " it again: it applies its log anew, or is sent its leader's state; it is well when this ends with 0",
        "a-state-machine-does-not-apply",
        actions=("transfer",),
    ),
    "alarm_snapshot_damaged": Advice(
        "{node}'s disk returns something else than its state machine saved there; the state in memory is as good as"
        " ever, and is saved again by itself",
        "look at that disk; nothing else has to be done. This has all snapshots read again at once",
        "damaged-entries",
        command=SCRUB,
        curl=SCRUB_CURL,
        actions=("scrub",),
    ),
    "alarm_snapshot_failed": Advice(
        "{node}'s state machine cannot save its state on {node}'s disk; it goes on applying, but nothing of the log"
        " behind its newest snapshot may be removed, so that disk fills",
        "mend what the problem's text names (room, or what lies in the place of the `snapshot` directory): it is tried"
        " again by itself within 5 minutes, and where an entry cannot be applied, once that is over; it is well when"
        " this ends with 0",
        "alarms",
    ),
    "alarm_disk_full": Advice(
        "{node}'s disk refused a write, or is fuller than it may be: it stores nothing new, and goes on answering",
        "make room on {where} (see what else lies on that disk), or raise the limit; it tries again by itself, without"
        " a restart; it is well when this ends with 0",
        "alarms",
    ),
    "wrong_peers": Advice(
        "{node}'s own configuration gives a peer another member's address: nothing that {node} sends reaches that peer,"
        " and it could neither be elected nor lead",
        "put `[peers]` of {node} right on {where} (`quorumscope members list` shows where the group has each), and"
        " start {node} again; it is well when this ends with 0",
        "a-member-is-cut-off",
    ),
    "kept_out": Advice(
        "{node} runs, and the others end each connection with it, or it ends theirs: no entry gets to it, and it does"
        " not count",
        "put right on {where} what the text says: the members' secret (`[node] secret_file`, then SIGHUP), or"
        " `[node] group` and `[peers]` (then start {node} again); one that was removed comes back with an empty"
        " directory only; it is well when this ends with 0",
        "a-member-is-not-let-in",
    ),
    "clock_differs": Advice(
        "the log does not go by clocks; the times that {node} stamps as leader, delays of messages, the age of what"
        " retention removes, and the end of tokens and certificates do",
        "set the clock of {where}, by NTP or the like, and see why it was not (`timedatectl` says whether it is kept);"
        " it is well when this ends with 0",
        "a-clock-is-wrong",
    ),
    "directory_gone": Advice(
        "the files that {node} has open have no name any more, and end with its process",
        "see on {where} whether that disk is mounted, and who removed or moved the directory; then end {node} and start"
        " it as it was before, without --init: it comes back without a vote, and its leader brings it all of the log."
        " One member at a time; where several say this, copy the entries out first (docs). It is well when this ends"
        " with 0",
        "a-data-directory-is-gone",
    ),
    "disk_low": Advice(
        "{node} stores nothing new once no further data file has room; it goes on with what it has until then",
        "make room on {where} (see what else lies on that disk); it is well when this ends with 0",
        "alarms",
    ),
    **BROKER_ADVICE,
    "term_flapping": Advice(
        "leaders are replaced again and again: they come late, or links between members come and go",
        "look at load and clocks of the members: `quorumscope_tick_gap_max_ms` in the second line",
        "elections-do-not-settle",
        curl="curl -s {url}/metrics",
    ),
    "member_certificate_ends": Advice(
        "{node} shows it to members and clients; once it has ended, no new connection between them is made",
        "put a new one at `tls_cert_file` of {node}'s table [node] and send {node} SIGHUP; this shows what the port"
        " serves with",
        "a-certificate-ends",
        command="openssl s_client -connect {address} </dev/null 2>/dev/null | openssl x509 -noout -subject -enddate",
    ),
    "member_authority_ends": Advice(
        "{node} knows members and clients by that authority; once it has ended, {node} refuses all of them",
        "put the newer authority into `tls_ca_file` of {node}'s table [node], beside the old one, and send {node}"
        " SIGHUP, on every member; certificates that it signed come after that",
        "a-certificate-ends",
    ),
    "client_certificate_ends": Advice(
        "members refuse a client whose certificate has ended; connections that it has live on",
        "give those clients new certificates; `certificates` in a member's state says which it has seen",
        "a-certificate-ends",
    ),
    "node_certificate_ends": Advice(
        "{node}'s control plane serves with that certificate; once it has ended, consoles and programs refuse it",
        "put a new one at `tls_cert_file` of {node}'s table [control] and send {node} SIGHUP; this shows what it serves"
        " with",
        "a-certificate-ends",
        command="openssl s_client -connect {host} </dev/null 2>/dev/null | openssl x509 -noout -subject -enddate",
    ),
    "first_leadership_hazard": Advice(
        "a failover to such a member cuts what its followers hold, committed entries too (a fault of the original)",
        "stop no leader on purpose, and keep a copy of the data directories; this says who leads",
        "a-first-leadership",
        command=LEADER_STATUS,
    ),
    "flush_async": Advice(
        "a write counts once a quorum has it in memory",
        "where a power cut must lose nothing, say `sync` as `flush` in every member's file, and send each one SIGHUP",
        "flush-is-async",
    ),
    "audit_divergent": Advice(
        "replicas hold different bytes for the same entry, and no audit has shown since that they agree",
        "read on the audit's page which entries on which replica, have that member read and mend its log, and audit"
        " again",
        "an-audit-found-a-difference",
        command=SCRUB,
        curl=SCRUB_CURL,
        actions=("scrub", "audit"),
    ),
    "audit_incomplete": Advice(
        "some of what the replicas hold was not compared, so that nothing is proven of it",
        "bring all members up and audit again on this console's page Audits. This audits from a command line, and"
        " closes nothing here",
        "an-audit-found-a-difference",
        command="{audit}",
        actions=("audit",),
    ),
}
ALARM: Final = Advice(
    "{node} itself raises the alarm {kind}; its text says why",
    "do what the text says; the whole alarm is in its state",
    "alarms",
)
