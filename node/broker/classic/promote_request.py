"""The request by which a broker's own control plane has it promoted, or asks what a promotion would lose (PROMOTE).

Invariant: nothing is looked at, or changed, for whoever does not show the key of this broker's directory.
"""

from __future__ import annotations

import json
from typing import Any, Final

from node.background import Background, reason_of
from node.broker.classic.control_key import is_key
from node.broker.classic.promotion import NotPromoted, Promotion
from node.ha.settings import BrokerRole
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Call, Reply

BODY_BYTES_MAX: Final = 16 * 1024
BY_LETTERS_MAX: Final = 200


class PromoteRequests:
    """See the module's docstring."""

    def __init__(self, promotion: Promotion, key: str) -> None:
        self._promotion, self._key = promotion, key
        self._background = Background()

    def handle(self, call: Call) -> Reply | None:
        try:
            asked = json.loads(bytes(call.request.body[:BODY_BYTES_MAX]))
            shown, by = asked["key"], str(asked["by"])[:BY_LETTERS_MAX]
            accepted = {str(one) for one in asked["accept"]}
            role = None if asked["role"] is None else BrokerRole(asked["role"])
            is_trial, if_epoch = bool(asked["dry_run"]), asked.get("if_term")
            if if_epoch is not None and type(if_epoch) is not int:
                raise TypeError(if_epoch)
        except (ValueError, TypeError, KeyError, RecursionError):
            return Reply(Answer.SYSTEM_ERROR, None, "no promotion that can be read")
        if not is_key(self._key, shown):
            return Reply(Answer.NO_PERMISSION, None, "that is not the key of this broker's directory")
        if role is BrokerRole.SLAVE:
            return Reply(Answer.SYSTEM_ERROR, None, "a promotion makes a master")
        self._background.run("a promotion", self._answered(call, role, accepted, by, if_epoch, is_trial=is_trial))
        return None

    async def _answered(
        self, call: Call, role: BrokerRole | None, accepted: set[str], by: str, if_epoch: int | None, *, is_trial: bool
    ) -> None:  # fmt: skip
        said: dict[str, Any] = {"promoted": False, "epoch": None}
        said["role"] = (role or self._promotion.role).value
        try:
            if is_trial:
                found = await self._promotion.look()
            else:
                said["epoch"] = await self._promotion.promote(role, accepted, by, if_epoch)
                said["promoted"], found = True, []
        except NotPromoted as error:
            found = error.findings
        except Exception as error:
            why = "a look at it failed" if is_trial else "it is not known whether it is promoted"
            call.answer(Reply(Answer.SYSTEM_ERROR, None, f"{why}: {reason_of(error)}"))
            raise
        said["findings"] = [one.as_said() for one in found]
        call.answer(Reply(body=json.dumps(said).encode()))
