"""The control plane's connection to its own broker, over the port that RocketMQ's clients use, from this machine.

Questions are the request of `node/broker/introspection.py`; changes are RocketMQ's own requests. Invariants: an answer
that is none is a problem that says whether anything may have been changed; a code that stands for "nothing was stored"
is never answered as unknown, nor the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Any, Final, TypeVar

from node.broker.introspection import INTROSPECT
from node.config import Settings, split_address
from node.control.common import Parts, not_leader
from node.control.problems import Problem
from node.message_client.errors import Unavailable
from node.message_client.link import Link
from node.protocol.peers import dialled
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.views.base import View
from node.views.broker import BrokerSaid, GroupStands
from node.views.reading import read
from node.views.state import StateView

WITHIN_S: Final = 5.0
SILENT_WITHIN_S: Final = 1.0  # of one that answered nothing last: whoever asks here gives up soon, and is to learn why
RETRY: Final = {"retry-after": "1"}
NOT_STORED: Final = "not_appended"
Json = dict[str, Any]
V = TypeVar("V", bound=View)


class NotUnderstood(Problem):
    """The broker answers, and not as this version reads it."""


class BrokerLink:
    """Connects when it is first asked, and again after it was lost."""

    def __init__(self, settings: Settings) -> None:
        host, port = split_address(settings.broker.address)
        host = dialled(host)
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._link: Link | None = None
        self._silent = False  # as the last question showed; `BrokerAlarms` asks one each second
        self.hangs = False  # the same: it took the question, and gave no answer

    async def command(
        self, code: int, fields: dict[str, str] | None, body: bytes = b"", within_s: float = WITHIN_S
    ) -> Command:
        """Raises Unavailable."""
        if self._link is None:
            self._link = Link(self.address)
        return await self._link.ask(code, fields, body, within_s)

    async def ask(self, what: str, within_s: float = WITHIN_S, *, patient: bool = False, **asked: Any) -> Command:
        """A question; what is None is left out. `patient`: waits as long for one that is silent. Raises Problem."""
        question = {"ask": what, **{name: value for name, value in asked.items() if value is not None}}
        limit_s = min(within_s, SILENT_WITHIN_S) if self._silent and not patient else within_s
        try:
            answer = await self.command(INTROSPECT, {}, json.dumps(question).encode(), limit_s)
        except Unavailable as error:
            self._silent, self.hangs = True, error.sent
            raise broker_away(error) from error
        self._silent = self.hangs = False
        if answer.code != Answer.SUCCESS:
            raise refusal(answer.code, answer.remark or "")
        return answer

    async def json(self, what: str, within_s: float = WITHIN_S, **asked: Any) -> Json:
        """Raises Problem."""
        answer: Json = json.loads(bytes((await self.ask(what, within_s, **asked)).body))
        return answer

    async def broker(self, within_s: float = WITHIN_S, *, patient: bool = False) -> BrokerSaid:
        """What it says of itself. Raises Problem."""
        answer = await self.ask("broker", within_s, patient=patient)
        return _read(BrokerSaid, answer)

    async def group_stands(self, limit: int, cursor: str | None) -> GroupStands:
        """A page of the consumer groups of applications. Raises Problem."""
        answer = await self.ask("groups", limit=limit, system=False, brief=True, cursor=cursor)
        return _read(GroupStands, answer)

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()


def _read(view: type[V], answer: Command) -> V:
    try:
        return read(view, json.loads(bytes(answer.body)))
    except (ValueError, RecursionError) as error:  # it is of another version, while a node is being upgraded
        text = f"This member's broker answers what this version cannot read ({error}): restart the node."
        raise NotUnderstood(503, "The broker cannot be understood", text, headers=RETRY) from error


def broker_away(error: Unavailable) -> Problem:
    text = f"This member's broker does not answer ({error}): look at its log."
    return Problem(503, "The broker does not answer", text, headers=RETRY)


def is_busy(problem: Problem) -> bool:
    """It answers, and only has too much to answer already."""
    return problem.extra.get("code") == Answer.SYSTEM_BUSY


def refusal(code: int, remark: str, **extra: Any) -> Problem:
    """What RocketMQ's answer to a request means that was not carried out; its code is in the problem."""
    title, status = {
        Answer.TOPIC_NOT_EXIST: ("No such topic", 404),
        Answer.SUBSCRIPTION_GROUP_NOT_EXIST: ("No such consumer group", 404),
        Answer.QUERY_NOT_FOUND: ("No such message", 404),
        Answer.NO_PERMISSION: ("Not permitted", 409),
        Answer.SYSTEM_BUSY: ("Busy", 503),
    }.get(code, ("Refused by the broker", 422))  # type: ignore[call-overload]
    headers = RETRY if status == 503 else None
    return Problem(status, title, remark.partition("\n")[0].strip() or title, headers=headers, code=code, **extra)


async def changed(
    parts: Parts, link: BrokerLink, code: Request, fields: dict[str, str], body: bytes = b"",
    done: Container[int] = (Answer.SUCCESS,),
) -> Command:  # fmt: skip
    """Has the broker change something; `done`: the answers that say it did. Raises Problem; on all but 504 nothing was
    changed."""
    try:
        answer = await link.command(code, fields, body)
    except Unavailable as error:
        if not error.sent:
            problem = broker_away(error)
            problem.extra["outcome"] = NOT_STORED
            raise problem from None
        raise unknown(str(error)) from None
    if answer.code in done:
        return answer
    remark = answer.remark or ""
    if answer.code == Answer.SYSTEM_ERROR and "not known" in remark:
        raise unknown(remark)
    if answer.code == Answer.SERVICE_NOT_AVAILABLE:
        raise not_leader(await parts.snapshots.get(StateView), outcome=NOT_STORED)
    raise refusal(answer.code, remark, outcome=NOT_STORED)


def unknown(detail: str) -> Problem:
    text = f"{detail} It may have been done: look before it is asked again."
    return Problem(504, "The outcome is unknown", text, outcome="unknown", safe_to_retry=False)
