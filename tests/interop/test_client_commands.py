"""Every command that a Java client, broker or name server sent: read, written to the same bytes, its header typed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from node.rocketmq import headers
from node.rocketmq.bodies import read_heartbeat, read_lock_request
from node.rocketmq.codes import Request
from node.rocketmq.command import Command, decode, encode
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.java_json import load

# What every request of a code is read as; None: it has no header.
HEADERS: dict[Request, Any] = {
    Request.SEND_MESSAGE: headers.SendRequest,
    Request.PULL_MESSAGE: headers.PullRequest,
    Request.QUERY_MESSAGE: headers.QueryRequest,
    Request.QUERY_CONSUMER_OFFSET: headers.QueryOffsetRequest,
    Request.UPDATE_CONSUMER_OFFSET: headers.UpdateOffsetRequest,
    Request.UPDATE_AND_CREATE_TOPIC: headers.CreateTopicRequest,
    Request.SEARCH_OFFSET_BY_TIMESTAMP: headers.SearchOffsetRequest,
    Request.GET_MAX_OFFSET: headers.QueueRequest,
    Request.GET_MIN_OFFSET: headers.QueueRequest,
    Request.GET_EARLIEST_MSG_STORETIME: headers.QueueRequest,
    Request.VIEW_MESSAGE_BY_ID: headers.ViewRequest,
    Request.UNREGISTER_CLIENT: headers.UnregisterClientRequest,
    Request.CONSUMER_SEND_MSG_BACK: headers.SendBackRequest,
    Request.END_TRANSACTION: headers.EndTransactionRequest,
    Request.GET_CONSUMER_LIST_BY_GROUP: headers.GroupRequest,
    Request.CHECK_TRANSACTION_STATE: headers.CheckTransactionRequest,
    Request.NOTIFY_CONSUMER_IDS_CHANGED: headers.GroupRequest,
    Request.PUT_KV_CONFIG: headers.PutKvRequest,
    Request.GET_KV_CONFIG: headers.KvRequest,
    Request.DELETE_KV_CONFIG: headers.KvRequest,
    Request.REGISTER_BROKER: headers.RegisterBrokerRequest,
    Request.UNREGISTER_BROKER: headers.UnregisterBrokerRequest,
    Request.GET_ROUTEINFO_BY_TOPIC: headers.RouteRequest,
    Request.WIPE_WRITE_PERM_OF_BROKER: headers.BrokerNameRequest,
    Request.DELETE_TOPIC_IN_NAMESRV: headers.DeleteTopicRequest,
    Request.GET_KVLIST_BY_NAMESPACE: headers.NamespaceRequest,
    Request.GET_TOPICS_BY_CLUSTER: headers.ClusterRequest,
    Request.SEND_MESSAGE_V2: headers.SendRequestV2,
    Request.SEND_BATCH_MESSAGE: headers.SendRequestV2,
    Request.ADD_WRITE_PERM_OF_BROKER: headers.BrokerNameRequest,
}
NOT_READ = {"bname", "ReqT"}
WITHOUT_A_FIELD = {"raw-missing-field"}
BODIES = {
    Request.HEART_BEAT: read_heartbeat,
    Request.LOCK_BATCH_MQ: read_lock_request,
    Request.UNLOCK_BATCH_MQ: read_lock_request,
}


@pytest.fixture(scope="module")
def commands(vectors: Path) -> list[tuple[str, bytes, Command]]:
    found: list[tuple[str, bytes, Command]] = []
    for path in sorted((vectors / "rocketmq" / "rpc").glob("*.json")):
        if path.name != "index.json":
            for one in json.loads(path.read_bytes())["frames"]:
                data = bytes.fromhex(one["hex"])
                found.append((one["case"], data, decode(data)))
    assert len(found) > 1400
    return found


def test_every_command_comes_back_to_the_byte(commands: list[tuple[str, bytes, Command]]) -> None:
    forms: Counter[bool] = Counter()
    for _case, data, command in commands:
        assert encode(command) == data
        forms[command.binary] += 1
    assert forms[True] >= 28


def test_every_header_of_a_request_has_all_that_was_said(commands: list[tuple[str, bytes, Command]]) -> None:
    seen: Counter[Request] = Counter()
    for case, _data, command in commands:
        kind = HEADERS.get(Request(command.code)) if command.code in list(Request) else None
        if command.is_response or kind is None or case in WITHOUT_A_FIELD:
            continue
        said = {name: value for name, value in (command.fields or {}).items() if name not in NOT_READ}
        written = write_header(read_header(kind, command.fields))
        assert {name: written.get(name) for name in said} == said, case
        seen[Request(command.code)] += 1
    assert set(HEADERS) == set(seen), "every header is met"


def test_every_body_of_a_client_is_read(commands: list[tuple[str, bytes, Command]]) -> None:
    seen: Counter[int] = Counter()
    for case, _data, command in commands:
        if not command.is_response and command.code in BODIES:
            read = BODIES[Request(command.code)](command.body)
            seen[command.code] += 1
            if command.code == Request.HEART_BEAT and b"heartbeatFingerprint" not in bytes(command.body):
                assert load(read.encode()) == load(command.body), case  # type: ignore[union-attr]
    assert set(seen) == set(BODIES)
    assert seen[Request.HEART_BEAT] > 50
