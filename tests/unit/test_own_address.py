"""A member listens where the group's log says that it is, beside what [peers] says, and says where it cannot."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any

import pytest

from node.config import Settings
from node.engine.member_port import MemberPort
from node.engine.own_address import OwnAddress

OWN, ELSEWHERE, BEYOND = "127.0.0.1:20911", "127.0.0.1:30911", "10.0.0.7:20911"


class Ports:
    """A `Listen` whose ports are names in a list: open ones, and those that cannot be had."""

    def __init__(self, *taken: int) -> None:
        self.taken = taken
        self.open: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int, *_: Any) -> Any:
        if port in self.taken:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self.open.append((host, port))
        return SimpleNamespace(port=port, close=lambda: self.open.remove((host, port)), renew=lambda _tls: None)


class Member:
    """What `OwnAddress` needs of an engine that listens at OWN."""

    def __init__(self, ports: Ports, own: str = OWN) -> None:
        self.ports = ports
        self.settings = Settings.model_validate({"node": {"id": "n0", "group": "g"}, "peers": {"n0": own}})
        port = MemberPort(asyncio.get_running_loop(), ports)
        self.link = SimpleNamespace(in_since_ns=None)
        self.process: Any = SimpleNamespace(port=port)
        self.replica: Any = SimpleNamespace(peers=SimpleNamespace(of={"n1": SimpleNamespace(link=self.link)}))
        self.introspection: Any = SimpleNamespace()
        self.notes: list[tuple[str, str]] = []
        self.log_says(own)
        self.own_address = OwnAddress(self)

    def log_says(self, address: str) -> None:
        self.replica.configuration = SimpleNamespace(members={"n0": address})

    def note(self, kind: str, severity: str, detail: dict[str, Any]) -> None:
        self.notes.append((kind, severity))

    async def follow(self, address: str | None = None) -> list[str]:
        """Where it listens then."""
        if address is not None:
            self.log_says(address)
        self.own_address.follow()
        await asyncio.gather(*self.own_address.tasks)
        return [f"{host}:{port}" for host, port in self.ports.open]

    async def serve(self) -> None:
        await self.process.port.serve("g", SimpleNamespace(), self.settings.self_address, None)


def test_it_listens_where_its_log_says_too_and_at_the_last_such_address_alone() -> None:
    async def work() -> None:
        member = Member(Ports())
        await member.serve()
        assert await member.follow() == [OWN]
        assert await member.follow(ELSEWHERE) == [OWN, ELSEWHERE]
        assert await member.follow("127.0.0.1:30912") == [OWN, "127.0.0.1:30912"]
        assert member.introspection.address_alarms() == ()
        assert await member.follow(OWN) == [OWN]
        assert member.notes == [("listening_too", "info")] * 2
        assert await member.follow(ELSEWHERE) == [OWN, ELSEWHERE]
        member.process.port.leave("g")
        assert member.ports.open == []

    asyncio.run(work())


def test_an_address_that_it_cannot_have_is_an_alarm_while_nobody_reaches_it() -> None:
    async def work() -> None:
        member = Member(Ports(30911))
        await member.serve()
        assert await member.follow(ELSEWHERE) == [OWN]
        assert member.notes == [("not_listening", "warning")]
        (alarm,) = member.introspection.address_alarms()
        assert (alarm.code, alarm.severity) == ("own_address", "warning")
        assert f"at {ELSEWHERE}, where it cannot listen (Address already in use)" in alarm.text
        assert f"quorumscope members address n0 {OWN}" in alarm.text
        member.link.in_since_ns = 5  # by another name, or behind a translated address
        assert member.introspection.address_alarms() == ()
        member.link.in_since_ns = None
        await member.follow(OWN)
        assert member.introspection.address_alarms() == ()

    asyncio.run(work())


def test_beyond_loopback_it_opens_nothing_without_a_proof() -> None:
    async def work() -> None:
        member = Member(Ports())
        await member.serve()
        assert await member.follow(BEYOND) == [OWN]
        (alarm,) = member.introspection.address_alarms()
        assert "it is beyond loopback, and this member asks for no proof" in alarm.text

    asyncio.run(work())


@pytest.mark.parametrize(("own", "said"), [("0.0.0.0:20911", "n0.example:20911"), (OWN, ""), (OWN, OWN)])
def test_what_it_listens_on_already_is_not_opened_again(own: str, said: str) -> None:
    async def work() -> None:
        member = Member(Ports(), own)
        await member.serve()
        assert await member.follow(said) == [own]
        assert member.notes == []

    asyncio.run(work())
