"""A promotion: a slave becomes its pair's master because an operator says so, after a look at what that would lose.

    found = await promotion.look()            # the pre-flight: nothing is changed
    epoch = await promotion.promote(role, accepted={"lacks_bytes"}, by="ops")    # Raises NotPromoted

Each finding has a code, a text, and whether it stops the promotion unless it is accepted by its code.

Invariants: the epoch is on disk before the first put is taken, and skips so far ahead that an old master stays older
however often it starts; nothing is changed where a finding stops it; one promotion at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from node.broker.classic.pair import Others, Pair
from node.ha.asking import NoMaster
from node.ha.client import State
from node.ha.handshake import Hello
from node.ha.promotion import Candidate, began, best
from node.ha.settings import BrokerRole
from node.ha.sockets import now_ms
from node.protocol.value_class import value_class

Json = dict[str, Any]


@value_class(slots=True, frozen=True)
class Finding:
    """`stops`: unless it is accepted. `can_accept`: whether it may be."""

    code: str
    text: str
    stops: bool = False
    can_accept: bool = True

    def as_said(self) -> Json:
        return {"code": self.code, "text": self.text, "stops": self.stops, "can_be_accepted": self.can_accept}


class NotPromoted(Exception):
    """Nothing was changed; `findings` say why."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__("; ".join(one.text for one in findings))
        self.findings = findings


class Promotion:
    """See the module's docstring."""

    def __init__(self, pair: Pair, name: str) -> None:
        self._pair, self._name = pair, name
        self._doing = asyncio.Lock()

    @property
    def role(self) -> BrokerRole:
        """What the master was that this slave followed last; ASYNC_MASTER where it followed none of ours."""
        return self._pair.role_of_master or BrokerRole.ASYNC_MASTER

    async def look(self) -> list[Finding]:
        """What a promotion would meet and lose, as findings; changes nothing."""
        pair, log = self._pair, self._pair.store.log
        if pair.role.is_master:
            text = "this broker is the master already"
            if not pair.is_master:  # what makes it a slave would do so behind the promotion
                text = "it met a later master and is becoming a slave: once that is on its disk, try again"
            return [Finding("is_master", text, stops=True, can_accept=False)]
        found: list[Finding] = []
        if log.broken_by:
            text = f"its log cannot be written ({log.broken_by}): start it anew first"
            found.append(Finding("log_broken", text, stops=True, can_accept=False))
        if not pair.lineage.pair:
            text = "it never followed a master of a pair: what it holds is not known to be the pair's"
            found.append(Finding("no_pair", text, stops=True))
        elif log.max_offset < began(pair.lineage):
            text = (
                f"its log ends at {log.max_offset}, the newest promotion was at {began(pair.lineage)}: it lacks answers"
            )
            found.append(Finding("before_promotion", text, stops=True))
        others = await pair.masters()
        found += self._others(others)
        found += self._lacks(others)
        behind = log.max_offset - pair.store.end_position
        if behind:
            found.append(Finding("not_dispatched", f"{behind} bytes of its log are not in queues yet: they come first"))
        return found

    def _others(self, others: Others) -> list[Finding]:
        """What the other brokers of the pair say that stands against a promotion: another master above all."""
        pair = self._pair
        found: list[Finding] = []
        for address, said in others:
            if isinstance(said, NoMaster):
                found.append(self._silent(address, said, len(others)))
            elif said.lineage.pair != pair.lineage.pair:
                found.append(Finding("another_pair", f"{address} is of pair {said.lineage.pair or 'none'}"))
            elif said.role != BrokerRole.SLAVE.value:
                text = f"{address} is master of epoch {said.lineage.epoch}, and takes messages: stop it first"
                found.append(Finding("master_is_there", text, stops=True))
        return found

    def _silent(self, address: str, said: NoMaster, others: int) -> Finding:
        """With one other broker that is the master; of several, where it is not known to be that, it is a slave."""
        if address == self._pair.client.served_by or others == 1:
            return Finding("not_heard", f"{said}: where it is master, it takes messages on until it hears of this one")
        text = f"{said}: as a slave it may hold what was answered and is not here, and follow an older master on"
        return Finding("slave_not_heard", text, stops=True)

    def _better(self, others: Others) -> list[Finding]:
        """Another slave may hold what was answered, and this one lacks."""
        pair, end = self._pair, self._pair.store.log.max_offset
        found: list[Finding] = []
        own = Candidate(self._name, pair.lineage, end)
        heard = [
            Candidate(address, said.lineage, said.end)
            for address, said in others
            if isinstance(said, Hello) and said.lineage.pair == pair.lineage.pair
        ]
        better = best([own, *heard])
        if better is not None and better is not own and (better.end > end or better.lineage.epoch > own.lineage.epoch):
            text = (
                f"{better.name} has more: its log ends at {better.end}, of epoch {better.lineage.epoch}; this one's at"
            )
            found.append(Finding("another_has_more", f"{text} {end}, of epoch {pair.lineage.epoch}", stops=True))
        return found

    def _lacks(self, others: Others) -> list[Finding]:
        pair, end = self._pair, self._pair.store.log.max_offset
        found = self._better(others)
        known = pair.client.master_offset
        if known > end:
            text = f"it lacks at least {known - end} bytes that its master had when it was last heard"
            found.append(Finding("lacks_bytes", text, stops=True))
        if pair.client.state is not State.TRANSFER and self.role is BrokerRole.ASYNC_MASTER:
            lost_ms = pair.client.lost_ms
            when = f"{(now_ms() - lost_ms) / 1000:.0f} s ago" if lost_ms else "before this broker started"
            text = (
                f"its master was last heard {when}; an ASYNC_MASTER answers before a slave has the message: what it"
                " took and had not sent by then is not here"
            )
            found.append(Finding("may_lack", text))
        if pair.client.state is State.TRANSFER:
            text = "it follows a master right now: stop that one first, or messages that it takes now are lost"
            found.append(Finding("master_is_there", text, stops=True))
        return found

    async def promote(
        self, role: BrokerRole | None, accepted: Collection[str], by: str, if_epoch: int | None = None
    ) -> int:
        """The epoch that began. `if_epoch`: only out of this one. Raises NotPromoted, MessageStoreError, OSError."""
        if self._doing.locked():
            raise NotPromoted([Finding("under_way", "a promotion is under way", stops=True, can_accept=False)])
        async with self._doing:
            epoch = self._pair.lineage.epoch
            if if_epoch is not None and epoch != if_epoch:
                text = f"The epoch is {epoch}, not {if_epoch}: look again."
                raise NotPromoted([Finding("epoch_moved", text, stops=True, can_accept=False)])
            found = await self.look()
            stopping = [one for one in found if one.stops and not (one.can_accept and one.code in accepted)]
            if stopping:
                raise NotPromoted(found)
            pair = self._pair
            heard = [
                said.lineage.newest
                for _at, said in await pair.masters()
                if isinstance(said, Hello) and said.lineage.pair == pair.lineage.pair
            ]

            text = "another broker of the pair is being promoted, too: promote one of them, alone"
            another = Finding("another_promotion", text, stops=True, can_accept=False)

            def agree(others: Others) -> None:
                """What reached another slave until it heard of this promotion; one that did not hear may get more."""
                if pair.contested_by:
                    raise NotPromoted([another])
                silent = [self._silent(at, said, len(others)) for at, said in others if isinstance(said, NoMaster)]
                again = [one for one in (*silent, *self._better(others)) if one.stops and one.code not in accepted]
                if again:
                    raise NotPromoted(again)

            epoch = await pair.promote(role or self.role, max(heard, default=0), by, agree)
            if not pair.is_master:  # it has met the other one's epoch already
                raise NotPromoted([another])
            return epoch
