"""Listens where the group looks for this member, also where [peers] still says another address.

[peers] says where a member listens. Once `members address` (or `add`) put another one into the log, the others and all
clients look for it there. Started with the [peers] of before the move, as a service file that nobody changed has them,
it reaches the others, can even lead, and nobody finds it. So it listens at both.

Invariants: what [peers] says is listened on in any case; beyond loopback nothing is opened without the proof that the
configuration asks for there; an address that cannot be had ends nothing, and is an alarm for as long as no member
reaches this one (beyond a translated address, or by another name, they do).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from node.background import Background
from node.config import Settings
from node.config_table import is_loopback
from node.consensus.replica import Replica
from node.engine.clock import wall_text
from node.engine.introspect import Introspection
from node.engine.process import Process
from node.protocol.peers import is_everywhere, split_address
from node.views.state import AlarmView

ALARM: Final = "own_address"


class Driver(Protocol):
    """What is needed of the engine."""

    replica: Replica
    settings: Settings
    process: Process
    introspection: Introspection

    def note(self, kind: str, severity: str, detail: dict[str, Any]) -> None: ...


class OwnAddress:
    """One per engine; `follow` is called when the members may have changed."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._asked: str | None = None
        self._one_by_one = asyncio.Lock()
        self._background = Background()
        self._why, self._since = "", ""
        driver.introspection.address_alarms = self.alarms

    def wanted(self) -> str | None:
        """Where to listen beside [peers]' address; None: nowhere."""
        settings = self._driver.settings
        said = self._driver.replica.configuration.members.get(settings.node.id, "")
        if said in ("", settings.self_address):
            return None
        (host, port), own = split_address(said), split_address(settings.self_address)
        return None if port == own[1] and (is_everywhere(own[0]) or host == own[0]) else said

    def follow(self) -> None:
        """Listens where the configuration in effect says, in a moment."""
        if self.wanted() != self._asked:
            self._background.run("listening where the group looks for this member", self._listen())

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """What it is about just now."""
        return self._background.tasks

    async def _listen(self) -> None:
        async with self._one_by_one:
            wanted = self.wanted()
            if wanted == self._asked:
                return
            self._asked, self._why, settings = wanted, "", self._driver.settings
            try:
                if wanted is not None and not (is_loopback(split_address(wanted)[0]) or settings.proves_members()):
                    raise PermissionError("it is beyond loopback, and this member asks for no proof")
                await self._driver.process.port.also(settings.node.group, wanted)
            except OSError as error:
                self._why, self._since = error.strerror or str(error), wall_text()
            if wanted is not None:
                detail = {"address": wanted, "peers_address": settings.self_address}
                if self._why:
                    self._driver.note("not_listening", "warning", {**detail, "reason": self._why})
                else:
                    self._driver.note("listening_too", "info", detail)

    def alarms(self) -> tuple[AlarmView, ...]:
        """While no member reaches this one, and the group looks for it where it does not listen."""
        peers = self._driver.replica.peers.of.values()
        if not self._why or any(one.link is not None and one.link.in_since_ns is not None for one in peers):
            return ()
        own = self._driver.settings.self_address
        text = (
            f"the group's log says that this member is at {self._asked}, where it cannot listen ({self._why}), and no"
            f" member reaches it at {own}, which [peers] says: start it with [peers] that name it where it is, and"
            f" where that is {own}, tell the group: quorumscope members address {self._driver.settings.node.id} {own}"
        )
        return (AlarmView(code=ALARM, severity="warning", peer_id=None, text=text, since=self._since),)
