"""What to do about each problem: one sentence with the command that does it. Every code has one (a test asks)."""

from __future__ import annotations

from typing import Final

from app.health.facts import Finding
from app.health.group_view import GroupView

NETWORK: Final = (
    "look at the network between {node} and {leader}, both ways: `curl -s {url}/api/v1/state` has `links`, who hears"
    " whom; it is well when `quorumscope status` ends with 0"
)
START: Final = (
    "look at {node}'s output and at engine-refused.json in its data directory, then start it again: `quorumscope node"
    " --id {node} --group {group} --peers … --data …`; later starts need no --init"
)
STEPS: Final[dict[str, str]] = {
    "never_reached": START,
    "all_silent": "look whether the nodes run and whether this machine reaches them: `quorumscope status`",
    "replica_silent": START,
    "engine_down": START,
    "member_unreachable": START,
    "quorum_lost": "start members, or mend their network, until {needed} of them hear each other: `quorumscope status`"
    " names who does not answer",
    "no_leader": "a leader is elected within a second once {needed} members hear each other: `quorumscope status` says"
    " which do not",
    "leader_out_of_sight": "look whether its control plane runs, and is reached from here: `quorumscope status`",
    "two_leaders": "stop writing and audit at once: `{audit}`; keep all data directories",
    "diverged": "nothing was cut: compare the histories, `{audit}`, before you repair"
    " (docs/operations.md, Damaged entries)",
    "cut_off": NETWORK,
    "one_way": NETWORK,
    "not_connected": NETWORK,
    "slow_link": "measure the way to {node} (`ping`, `ss -ti`) and its load; if it leads, move leadership away:"
    " `quorumscope transfer`",
    "resends": "look for losses on the way to {node}, and at its disk: `curl -s {leader_url}/api/v1/dispatchers`",
    "log_damaged": "it is mended from a peer by itself; to look again at once: `curl -X POST {url}/api/v1/scrub`",
    "voter_restricted": "wait until a leader has brought it back: `quorumscope status` says when it is a VOTER again",
    "lagging": "look at its link and its disk: `curl -s {leader_url}/api/v1/dispatchers` says what is sent and what"
    " comes back",
    "catching_up": "wait: `quorumscope status` ends with 0 once it is level",
    "not_catching_up": "look at what holds it back: `curl -s {leader_url}/api/v1/dispatchers`; its disk may be full or"
    " its link slow",
    "not_append": "look at its last transitions: `curl -s {leader_url}/api/v1/dispatchers`",
    "dispatcher_loop": "the leader trims its log faster than {node} installs what is left: keep more of the log, or"
    " write less until it is level: `curl -s {leader_url}/api/v1/dispatchers`",
    "closures_full": "see for whom the writes wait: `curl -s {leader_url}/api/v1/closures`; bring that member back",
    "closures_piling": "see for whom the writes wait: `curl -s {leader_url}/api/v1/closures`",
    "closures_slow": "see for whom the writes wait: `curl -s {leader_url}/api/v1/closures`",
    "commit_stalled": "see for whom the writes wait: `curl -s {leader_url}/api/v1/closures`; bring that member back",
    "term_flapping": "look at load and clocks of the members: `quorumscope_tick_gap_max_ms` in `curl -s {url}/metrics`",
    "flush_async": "restart the nodes one by one with `--flush sync` where a power cut must lose nothing",
    "audit_divergent": "read which entries on the audit's page, mend that member (`curl -X POST"
    " {url}/api/v1/scrub`), and audit again: `{audit}`",
    "audit_incomplete": "bring all members up and audit again: `{audit}`",
}
ALARM: Final = "docs/operations.md says what to do about {kind}; `curl -s {url}/api/v1/state` has the whole alarm"


def next_step(finding: Finding, view: GroupView) -> str:
    """For one problem of one group."""
    urls = {one.id: one.control_url or "$CONTROL_URL" for one in view.members}
    leader = view.leader_id
    fields = {
        "node": finding.node_id or "the member",
        "url": urls.get(finding.node_id or "", urls.get(leader or "", "$CONTROL_URL")),
        "leader": leader or "the others",
        "leader_url": urls.get(leader or "", "$CONTROL_URL"),
        "group": view.cluster.group,
        "needed": str(view.quorum.needed),
        "audit": " ".join(["quorumscope audit", *(f"--node {url}" for url in urls.values())]),
        "kind": finding.code.removeprefix("alarm_"),
    }
    return STEPS.get(finding.code, ALARM).format(**fields)
