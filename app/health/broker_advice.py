"""What an alarm about a member's broker means and what to do about it: rows of the table in `advice.py`."""

from __future__ import annotations

from typing import Final

from app.health.advice_row import Advice

BROKERS: Final = "quorumscope broker list --node {own_url}"
BROKER_CURL: Final = "curl -s {own_url}/api/v1/broker"


def of_broker(means: str, step: str, command: str = BROKERS) -> Advice:
    return Advice(means, step, "a-broker-is-not-well", command=command, curl=BROKER_CURL)


CONSUMERS_STALLED: Final = Advice(
    "messages of those groups are stored and wait; nobody takes them, and they expire with the log's retention",
    "look at the processes of those groups: one that is gone is started, one that hangs is ended; where nobody consumes"
    " for a group any more, this is as it should be. `quorumscope consumer describe GROUP` shows its queues; this"
    " lists all groups",
    "a-broker-is-not-well",
    command="quorumscope consumer list --node {own_url}",
    curl="curl -s {own_url}/api/v1/consumer-groups",
)
BROKER_ADVICE: Final[dict[str, Advice]] = {
    "alarm_broker_down": Advice(
        "clients of RocketMQ's get no answer from {node}; its log goes on, and is dispatched when its broker is back",
        "see {node}'s output for what ended its broker: its supervisor starts it again, unless its port is taken or its"
        " files are of another log; one that hangs at a member that does not lead: end its process `node.broker`; where"
        " {node} leads, leadership goes to another member by itself; it is well when this ends with 0",
        "a-broker-is-not-well",
        command=BROKERS,
        curl=BROKER_CURL,
        actions=("transfer",),
    ),
    "alarm_broker_dispatch_stopped": of_broker(
        "a committed entry cannot be read or dispatched at {node}: its consumers see nothing behind it, and as master"
        " it takes no more messages",
        "a damaged entry is healed from a peer by itself, a full disk needs room; the reason says which it is",
    ),
    "alarm_broker_dispatch_behind": of_broker(
        "what is committed comes late into {node}'s queues; a master that is more than a second behind takes no more",
        "look at the load and the disk of {node}'s machine; it is well when this ends with 0",
    ),
    "alarm_broker_not_master": of_broker(
        "{node} leads, and its broker has not become master: no broker of the group takes messages",
        "see at which step it is (`quorumscope broker describe`); it waits for its dispatch, or for its engine",
    ),
    "alarm_broker_not_registered": of_broker(
        "a name server does not know {node}'s broker, so clients that ask it do not find it",
        "look whether that name server runs, and is reached from {node}; `[broker] name_servers` says who is one",
    ),
    "alarm_broker_schedule_behind": of_broker(
        "messages with a delay level have come to their time, and {node}'s broker cannot store them into their topics:"
        " no room, a full disk, or a put that fails again and again",
        "see what else is wrong with {node} (disk, dispatch, quorum), and its broker's output; it is well when this"
        " ends with 0",
    ),
    "alarm_broker_message_damaged": of_broker(
        "what {node}'s disk returns for a message is not what was written, and no checksum of the log covers it to heal"
        " it by: nobody is given it; consumers, delayed messages and transactions that come to it stop there",
        "put that file of the log back while {node} is down, from a backup, or an old commit log's from another member"
        " (they are alike); or have each group pass it: `quorumscope consumer reset`",
    ),
    **dict.fromkeys(("alarm_broker_consumers_gone", "alarm_broker_consumers_stuck"), CONSUMERS_STALLED),
    "alarm_broker_transactions_unanswered": of_broker(
        "half messages wait for a decision that no producer gives; consumers do not see them, and after the last check"
        " each is given up: it goes to TRANS_CHECK_MAX_TIME_TOPIC, and is never delivered",
        "start the producers of that group again, or see why their check does not decide; `quorumscope broker describe`"
        " shows groups, counts and the oldest",
        command="quorumscope broker describe {node} --node {own_url}",
    ),
}
