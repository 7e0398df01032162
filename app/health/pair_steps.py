"""What a problem of a classic pair means, what is at stake, and what to do. Pure; commands run as they are printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.health.facts import Finding, refused
from app.health.group_view import GroupView, NextStep
from app.health.next_steps import with_token
from app.health.pair_links import master_of, slaves_of

DOCS: Final = "docs/classic-ha.md"
COMPARE: Final = "audit-master-against-slaves"  # a section of it
STATUS: Final = "quorumscope ha status {nodes}"
PROMOTE: Final = "quorumscope ha promote {most}"
CURL: Final = "curl -s {url}/api/v1/ha"
ONE_COPY: Final = "what is sent now lies on one broker alone: if its disk is lost, so is that"
LOST: Final = "what the master took and no slave acknowledged is lost if it does not come back"


@dataclass(frozen=True, slots=True)
class PairAdvice:
    """`{…}`: node, url, nodes, master, start, most."""

    means: str
    at_stake: str
    step: str
    command: str = STATUS
    docs: str = "problems-of-a-pair"


START: Final = PairAdvice(
    "{node} does not answer where it should: its process is gone, its machine is, or the way there is cut",
    "{spare}",
    "look at {node}'s output, then start it again",
    command="{start}",
)
SILENT: Final = PairAdvice(
    "{node} is asked and says nothing: its process hangs or is gone, its machine is, or the way there is cut",
    "{spare}",
    "see on its machine whether {node}'s processes still run: what hangs has to go on, or be ended; what is gone is"
    " started as it was before; it is well when this ends with 0",
)
ADVICE: Final[dict[str, PairAdvice]] = {
    "ha_all_silent": PairAdvice(
        "no control plane of the pair answers: the machines are gone, or the way to them is cut",
        LOST, "start the brokers, or mend the network; it is well when this ends with 0",
    ),
    "ha_silent": START,
    "ha_broker_down": PairAdvice(
        "{node}'s control plane runs, and its broker does not answer it: the broker ended, or it hangs",
        "{spare}",
        "look at {node}'s output: a broker that ended is started again by itself; one that hangs (a debugger, SIGSTOP,"
        " a disk) has to go on, or be ended; what its output refuses is mended, and {node} started again; it is well"
        " when this ends with 0",
    ),
    "ha_no_master": PairAdvice(
        "slaves never become master by themselves: consumers go on reading there, senders have nobody to send to",
        LOST,
        "bring the master back; if it is lost, promote the slave that has most: this says what would be lost, and asks",
        command=PROMOTE,
    ),
    "ha_two_masters": PairAdvice(
        "both take messages: each holds what the other has not, and their logs part",
        "what one of the two takes now will be cut from it, or has to be brought over by hand",
        "end {node}, the one of the older epoch; it is well when this ends with 0",
    ),
    "ha_fenced": PairAdvice(
        "a later master is there, and {node} heard of it: it refuses messages, so that the logs do not part further",
        "what {node} took after the later epoch began is on it alone",
        "start {node} again as a slave: where its log goes on beyond the common part it is refused, and says so",
    ),
    "ha_disk_full": PairAdvice(
        "{node} takes nothing more before its disk is so full that a write fails; consumers go on reading there, and"
        " what it took is safe",
        "{spare}",
        "make room on the disk of {node}'s data: it goes on by itself then, without a restart; this shows both ends",
    ),
    "ha_config_not_saved": PairAdvice(
        "{node} knows topics, groups and offsets that its files do not: it goes on, and lacks them after a restart",
        "what consumers at {node} committed meanwhile comes to them again after a restart",
        "make room on the disk of that folder, or mend what keeps {node} from writing there, before {node} is"
        " restarted: all is saved by itself then",
    ),
    "ha_log_broken": PairAdvice(
        "a write or a sync of {node}'s log failed, and it writes nothing until its log is opened anew",
        "{spare}",
        "look at its disk: where it lacks room, make some, and its broker begins anew by itself; else end {node}, which"
        " runs on, replace the disk, and start {node} again",
        command="{start}",
    ),
    "ha_log_damaged": PairAdvice(
        "bytes of {node}'s log that were on disk are others now: its disk lost them, or somebody wrote there. Consumers"
        " stop before such a message, and a new slave cannot get past it",
        "each message there is left on the other brokers only",
        "see which broker holds the right bytes (this compares them); then give {node} a sound copy: promote a slave in"
        " step if it is master, stop it, empty its directory, and start it as a slave: it gets everything",
        command="quorumscope audit --ha {nodes}", docs=COMPARE,
    ),
    "ha_too_few_slaves": PairAdvice(
        "a SYNC_MASTER answers SLAVE_NOT_AVAILABLE at once where too few slaves are connected and near enough: the"
        " message is stored at the master alone, and senders see a failure",
        ONE_COPY, "bring the slaves back, or mend what refuses them; this names each with its reason",
    ),
    "ha_no_slave": PairAdvice(
        "an ASYNC_MASTER takes messages without any slave",
        ONE_COPY, "start a slave; this shows who is connected",
    ),
    "ha_slave_gone": PairAdvice(
        "no bytes go from the master to {node}: it tries again by itself",
        "{spare}", "see whether {node} reaches its master's HA port; this names the reason at both ends",
    ),
    "ha_slave_not_served": PairAdvice(
        "a slave asks for the log and is refused; the master says why",
        "{spare}", "attach that slave here to see it, or correct what the reason names",
    ),
    "ha_ahead": PairAdvice(
        "{node} ends behind its master's end: it holds what its master lost, or never had. Served on, both would hold"
        " other messages at the same offsets; so it gets nothing",
        "what {node} holds beyond its master's end is on it alone",
        "compare both brokers' files to see what only {node} has (`quorumscope audit --ha`); then either promote"
        " {node}, or let it cut back ([ha] cuts_back = true, which keeps a copy) and start it again. This shows where"
        " both end",
        docs=COMPARE,
    ),
    "ha_forked": PairAdvice(
        "{node} and its master hold other records at the same offsets: each was master for a while, or one is damaged",
        "what {node} holds behind the place where the logs part is on it alone",
        "compare both brokers' files to find the first record that differs (`quorumscope audit --ha`); then let {node}"
        " cut back ([ha] cuts_back = true, which keeps a copy), or empty its directory. This shows where both end",
        docs=COMPARE,
    ),
    "ha_stranger": PairAdvice(
        "{node}'s log belongs to another pair: it is no copy of this master's",
        "where the master began anew on an empty disk, {node} holds what the pair had before, maybe alone",
        "see that {node} follows the right master ([ha] peers). If it does, and that one lost its disk, stop that one"
        " and promote {node}; only where {node} holds nothing that is needed, give it an empty directory",
    ),
    "ha_refused": PairAdvice(
        "the master does not serve {node}, for the reason that it gives",
        "{spare}", "correct what the reason names; {node} tries again by itself",
    ),
    "ha_behind": PairAdvice(
        "the slave gets bytes, and not as fast as they come",
        "what it lacks is lost with the master", "look at its disk and its link; this shows its lag and its rate",
    ),
    "ha_sends_wait": PairAdvice(
        "sends are answered once enough slaves acknowledge, and these do not",
        "after slaveTimeout they are answered FLUSH_SLAVE_TIMEOUT, though stored at the master",
        "bring the slave that is waited for back; this shows what it has acknowledged",
    ),
    "ha_unchecked": PairAdvice(
        "RocketMQ's slaves say one offset and nothing else: whether they hold the same bytes is not seen as they run",
        "a log that parted from its master's would not be noticed",
        "compare both brokers' files where one machine can read them (`quorumscope audit --ha`); this shows where both"
        " end",
        docs=COMPARE,
    ),
    "audit_divergent": PairAdvice(
        "two brokers' logs were read and are not the same: the audit's page shows the first record that differs",
        "after a failover consumers get something else, or an error",
        "read on the audit's page which log is wrong; a slave whose log is damaged is stopped, started with an empty"
        " directory, and gets everything from its master; then audit again on this console's page Audits. This audits"
        " from a command line, and closes nothing here",
        command="quorumscope audit --ha {nodes}", docs=COMPARE,
    ),
    "audit_incomplete": PairAdvice(
        "not every byte that two brokers hold was compared", "a difference there would not be seen",
        "read on the audit's page what was not read, then audit again on this console's page Audits. This audits from a"
        " command line, and closes nothing here",
        command="quorumscope audit --ha {nodes}",
        docs=COMPARE,
    ),
}  # fmt: skip


def pair_step(finding: Finding, view: GroupView) -> NextStep | None:
    """None for what is no pair's problem (a certificate)."""
    advice, one = ADVICE.get(finding.code), view.member(finding.node_id)
    if advice is None:
        return None
    if finding.code == "ha_silent" and one is not None and not refused(one):
        advice = SILENT  # nothing that may still run is started again
    fields = fields_of(finding, view)
    known = advice.command != PROMOTE or fields["most"]
    command = advice.command.format(**fields) if known else ""
    step = advice.step if command else f"{advice.step}; it is well when this ends with 0"
    curl = CURL.format(**fields) if fields["url"] else None
    return NextStep(
        means=advice.means.format(**fields), at_stake=advice.at_stake.format(**fields), step=step.format(**fields),
        command=command or STATUS.format(**fields), curl=None if curl is None else with_token(curl, view.cluster),
        docs=f"{DOCS}#{advice.docs}",
    )  # fmt: skip


def fields_of(finding: Finding, view: GroupView) -> dict[str, str]:
    urls = {one.id: one.control_url or "" for one in view.members}
    one, master = view.member(finding.node_id), master_of(view)
    first = next((urls[each.id] for each in view.members if each.reach == "ok" and urls[each.id]), "")
    own = urls.get(finding.node_id or "", "") if one is not None and one.reach == "ok" else ""
    start = one.ha.started_with if one is not None and one.ha is not None else None
    remembered = one.start.started_with if one is not None and one.start is not None else None
    return {
        "node": finding.node_id or "the broker", "url": own or first or next(filter(None, urls.values()), ""),
        "nodes": " ".join(f"--node {each}" for each in urls.values() if each) or "--node URL",
        "master": master[0].id if master is not None else "the master", "start": start or remembered or "",
        "spare": spare(finding, view), "most": most(view),
    }  # fmt: skip


def most(view: GroupView) -> str:
    """For a command: the slave to promote, as far as is seen; the promotion itself asks the others."""
    known = [
        ((said.epoch or 0, said.end_offset or 0), one.control_url)
        for one, said in slaves_of(view) if one.reach == "ok" and one.control_url
    ]  # fmt: skip
    return f"--node {max(known)[1]}" if known else ""


def spare(finding: Finding, view: GroupView) -> str:
    """How many copies of what is sent now there are."""
    master = master_of(view)
    if master is None:
        return LOST
    served = [
        one for one, said in slaves_of(view)
        if one.id != finding.node_id and said.following is not None and said.following.state == "transfer"
    ]  # fmt: skip
    if not served:
        return ONE_COPY
    copies = len(served) + 1
    return f"{copies} copies of what is sent now are left" if copies > 1 else ONE_COPY
