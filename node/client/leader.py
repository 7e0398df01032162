"""Finds the leader for a client: asks every member, and believes only the one that says it leads itself.

Invariant: a member that is stopped or cut off costs a question at most STRAGGLERS_WITHIN_S once a majority has
answered; nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import Final

from node.client.errors import Denied
from node.client.link import MemberLink
from node.protocol.codes import RequestCode
from node.protocol.quorum import majority_of
from node.transport.bodies import BodyError

ANSWER_WITHIN_S: Final = 1.0
STRAGGLERS_WITHIN_S: Final = 0.05


async def find_leader(links: Collection[MemberLink]) -> str | None:
    """Who of them says that it leads, the one with the most voices first; None: nobody does. Raises Denied."""
    voices = await _ask_all(links)
    ids = {link.member_id for link in links}
    for leader_id, _count in Counter(said for said in voices.values() if said in ids).most_common():
        if voices.get(leader_id) == leader_id:
            return leader_id
    return None


def no_leader_among(links: Collection[MemberLink]) -> str:
    """Why there was none to ask, right after `find_leader` found none."""
    misnamed = "; ".join(link.misnamed for link in links if link.misnamed)
    if any(link.open for link in links):
        silent = {link.member_id: link.address for link in links if link.named_leader is None}
        unseen = sorted({link.named_leader for link in links if link.named_leader in silent})
        named = ", ".join(f"{one} at {silent[one]}" for one in unseen)
        followed = f"; the others follow {named}, which does not answer" if unseen else ""
        return f"no member that answers leads{followed}{misnamed and f'; {misnamed}'}"
    asked = ", ".join(f"{link.member_id} at {link.address}" for link in links)
    if misnamed:
        return f"no member answers ({asked}): {misnamed}"
    if links and all(link.hung_up for link in links):
        return f"no member answers ({asked}): each closes the connection, as one with TLS where no certificate is shown"
    return f"no member answers ({asked}): start them, or name the addresses at which they listen"


async def _ask_all(links: Collection[MemberLink]) -> dict[str, str]:
    """Who says what, once one says that it leads itself; else soon after a majority has answered. Raises Denied where
    nobody answers but another group's members: one address may be theirs by now."""
    waiting = {asyncio.ensure_future(_ask(link)): link.member_id for link in links}
    voices: dict[str, str] = {}
    denied: Denied | None = None
    try:
        while waiting:
            enough = len(voices) >= majority_of(len(links))
            within_s = STRAGGLERS_WITHIN_S if enough else None
            done, _ = await asyncio.wait(waiting, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for task in done:
                member_id, said = waiting.pop(task), task.result()
                if isinstance(said, Denied):
                    denied = said
                elif said is not None:
                    voices[member_id] = said
                if said == member_id:
                    return voices
    finally:
        for task in waiting:
            task.cancel()
    if denied is not None and not voices:
        raise denied
    return voices


async def _ask(link: MemberLink) -> str | Denied | None:
    """Who leads, as this member says; "" where it knows none, None without an answer."""
    link.named_leader = None
    try:
        await link.connect()
        fields = await link.ask(RequestCode.METADATA, {}, ANSWER_WITHIN_S)
        link.identity.check(link, fields)
        link.identity.learn(fields)
        link.named_leader = fields.optional_text("leaderId") or ""
        return link.named_leader
    except Denied as error:
        return error
    except (OSError, TimeoutError, LookupError, BodyError):
        return None
