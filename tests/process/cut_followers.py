"""One way between two followers is cut as a firewall does it: `python -m tests.process.cut_followers DIRECTORY`.

Packets of one of them leave and never arrive, and nobody is told. The members live in network namespaces of this
process's own, which its caller entered (`net.isolation`): all ends with the process.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path
from typing import Final

from app.commands.group import look_closely, pressing_of
from app.commands.standing import StatusView
from app.commands.targets import Target
from tests.process.chaos_nodes import GROUP, make_members
from tests.process.net import CLIENTS, LinkState
from tests.process.net_namespaces import NamespaceNetwork

WITHIN_S: Final = 90.0
IDS: Final = ("n0", "n1", "n2")


def found(summary: StatusView) -> list[tuple[str, str | None]]:
    return [(one.code, one.member) for one in pressing_of(summary)]


async def until(target: Target, wanted: list[tuple[str, str | None]]) -> StatusView:
    """Until `status` names these and nothing else; none: until it says that all is well."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            summary = await look_closely(target)
            if found(summary) == wanted and (wanted or not summary.unknown):
                return summary


async def story(directory: Path) -> None:
    network = NamespaceNetwork()
    await network.start(IDS)
    token = directory / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(16))
    members = make_members(IDS, directory, network, token)
    target = Target(dict(network.peers_of(CLIENTS)), GROUP, token=token.read_text())
    try:
        for one in members.values():
            await one.start()
        leader = (await until(target, [])).leader_id
        mute, deaf = (one for one in IDS if one != leader)  # the first one is accused, whoever is deaf
        for blocked in ({(mute, deaf)}, {(deaf, mute)}, {(mute, deaf), (deaf, mute)}):
            await network.apply(LinkState(blocked=frozenset(blocked)))
            summary = await until(target, [("not_connected", mute)])
            (one,) = pressing_of(summary)
            assert mute in one.text and deaf in one.text, one
            assert summary.leader_id == leader and summary.quorum.standing == 3, "nothing else is wrong"
            await network.apply(LinkState())
            await until(target, [])
    finally:
        for one in members.values():
            await one.kill()


if __name__ == "__main__":
    asyncio.run(story(Path(sys.argv[1])))
