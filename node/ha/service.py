"""HAService: a broker's part in classic HA: its slaves' connections, and the puts that wait for them.

Invariants: acknowledgements count per slave, however many connections it has; a message waits for slaves only where its
sender and the role ask for it; nobody is waited for who is not there, or too far behind; an older master that meets a
slave which heard of a later epoch is fenced: it acknowledges nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from node.ha.connection import HAConnection, Phase
from node.ha.group_transfer import GroupTransferRequest, GroupTransferService
from node.ha.handshake import Hello, LogOf, Stand, Verdict, hello_of, judge, takes_nothing
from node.ha.lineage import Lineage
from node.ha.settings import BrokerRole, HaSettings
from node.message_store.put_result import PutStatus

CONNECTIONS_MAX: Final = 64
TROUBLE_MS: Final = 60_000  # a slave that is refused comes again every few seconds; who does not is gone
Note = Callable[[str, str, str], None]


class HAService:
    """See the module's docstring. `on_fenced` is called once, with the later epoch."""

    def __init__(
        self, log: LogOf, settings: HaSettings, role: BrokerRole, lineage: Lineage, note: Note,
        on_fenced: Callable[[int], None] = lambda _epoch: None,
    ) -> None:  # fmt: skip
        self.log, self.settings, self.role, self.lineage = log, settings, role, lineage
        self._note, self._on_fenced = note, on_fenced
        self.transfers = GroupTransferService()
        self.connections: list[HAConnection] = []
        self.push2_slave_max_offset = 0
        self.not_available = 0  # puts so far that ended SLAVE_NOT_AVAILABLE
        self.refusals = 0  # of connections of slaves, so far
        self.fenced_by = 0
        self._too_far = ""  # what was said last of epochs and is not believed
        self.broker = ""  # where clients reach this broker
        self._troubles: dict[str, tuple[str, int]] = {}  # why it is not served, and when it was refused last
        self._now_ms = 0
        self.on_data: list[Callable[[], None]] = []  # called when there is more to send
        self.on_statuses: list[Callable[[], None]] = []  # called when puts stopped waiting: who answers them
        # Keeps a later epoch that somebody who asks says, and calls back once no restart forgets it.
        self.on_heard: Callable[[int, Callable[[], None]], None] = lambda _epoch, then: then()

    @property
    def troubles(self) -> dict[str, str]:
        """By slave, or by address where nobody said who it is: why it is not served. Over when it is, or did not
        come again for TROUBLE_MS."""
        return {name: why for name, (why, _at_ms) in self._troubles.items()}

    # --- puts -----------------------------------------------------------------------------------------------------
    def handle_ha(self, next_offset: int, now_ms: int, done: Callable[[PutStatus], None]) -> None:
        """Of a put whose sender waits for it to be stored (property WAIT)."""
        self.has_data()
        needed = self.settings.in_sync_replicas - 1
        if not self.fenced_by and (self.role is not BrokerRole.SYNC_MASTER or needed < 1):
            done(PutStatus.PUT_OK)
        elif self.fenced_by or not self.is_slave_ok(next_offset):
            self.not_available += 1
            done(PutStatus.SLAVE_NOT_AVAILABLE)
        else:
            deadline_ms = now_ms + self.settings.slave_timeout_ms
            self.transfers.put_request(GroupTransferRequest(next_offset, needed, deadline_ms, done))

    def has_data(self) -> None:
        for wake in self.on_data:
            wake()

    def is_slave_ok(self, master_put_where: int) -> bool:
        """Whether as many slaves as a put needs are here, and less than haSlaveFallbehindMax behind."""
        limit = self.settings.slave_fall_behind_max_bytes
        near = sum(master_put_where - ack < limit for ack in self.acks().values())
        return near >= max(1, self.settings.in_sync_replicas - 1)

    def acks(self) -> dict[str, int]:
        """By slave that is served: the place up to which it has the log."""
        found: dict[str, int] = {}
        for one in self.connections:
            if one.phase is Phase.TRANSFER:
                found[one.slave] = max(one.slave_ack_offset, found.get(one.slave, 0))
        return found

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._settling(lambda: self.transfers.expire(now_ms))
        for one in self.connections:
            one.look(now_ms)
        for name in [name for name, (_why, at_ms) in self._troubles.items() if now_ms - at_ms > TROUBLE_MS]:
            del self._troubles[name]

    def _settling(self, act: Callable[[], None]) -> None:
        """What may end waits; whoever answers the puts hears of it once."""
        before = len(self.transfers)
        act()
        if len(self.transfers) < before:
            for answer in self.on_statuses:
                answer()

    # --- connections ----------------------------------------------------------------------------------------------
    def accept(self, address: str, now_ms: int) -> HAConnection | None:
        """None: there are too many. A slave, too, says what it is to whoever asks, and serves nobody."""
        if len(self.connections) >= CONNECTIONS_MAX and not self._made_room():
            return None
        self._now_ms = now_ms
        connection = HAConnection(self, address, now_ms)
        self.connections.append(connection)
        return connection

    def _made_room(self) -> bool:
        """The oldest that has not said who it is goes for a new one, else one that only asks: no slave is kept out."""
        stranger = next((one for one in self.connections if not one.is_known), None)
        if stranger is None:
            stranger = next((one for one in self.connections if one.phase is not Phase.TRANSFER), None)
        if stranger is not None:
            stranger.close("others came, and it is no slave that is served")
            self.connections.remove(stranger)
        return stranger is not None

    def remove(self, connection: HAConnection) -> None:
        """Its socket is closed."""
        connection.close(connection.closed_by or "the connection ended")
        if connection in self.connections:
            self.connections.remove(connection)
            if connection.slave:  # who only asked is no slave
                self._note("ha_disconnected", "info", f"slave {_name(connection)}: {connection.closed_by}")

    def end(self, why: str) -> None:
        """This broker is no master any more."""
        for one in list(self.connections):
            one.close(why)
        self._settling(self.transfers.end)

    @property
    def is_serving(self) -> bool:
        return self.role.is_master and not self.fenced_by

    def hello(self) -> Hello:
        return hello_of(self.log, self.lineage, broker=self.broker, role=self.role.value)

    def heard(self, hello: Hello, then: Callable[[], None]) -> None:
        """What a broker says that only asks: `then` is called once the promotion that it heard of is kept here."""
        if self._is_later(hello):
            self.on_heard(hello.lineage.newest, then)
        else:
            then()

    def _is_later(self, hello: Hello) -> bool:
        own, theirs = self.lineage, hello.lineage
        return bool(own.pair) and theirs.pair == own.pair and theirs.newest > own.epoch and not own.too_far(theirs)

    def judged(self, connection: HAConnection, hello: Hello) -> Verdict:
        if far := self.lineage.too_far(hello.lineage):
            self.epoch_refused(connection.address, far)
            return Verdict(Stand.REFUSED, far)
        if self._is_later(hello) and self.role.is_master:
            self.fence(hello.lineage.newest)
        if not hello.slave:
            return Verdict(Stand.REFUSED, "it only asks")
        for one in self.connections:
            same = one is not connection and one.slave == hello.slave and one.phase is Phase.TRANSFER
            if same and one.run != hello.run and self._is_heard(one):
                return Verdict(Stand.REFUSED, f"a slave with the id {hello.slave} is connected from {one.address}")
            if same:
                one.close("it connected again")
        verdict = judge(self.log, self.lineage, hello)
        if hello.unable and verdict.stand.is_served:  # or puts would wait for it, whenever it comes again
            return Verdict(Stand.REFUSED, takes_nothing(hello.unable))
        if self.is_serving or verdict.stand is Stand.REFUSED:
            return verdict
        return Verdict(Stand.REFUSED, "this broker is no master")  # nobody cuts anything back to its log

    def _is_heard(self, one: HAConnection) -> bool:
        """A slave reports with each heartbeat. One that was not heard for two of them is behind a half-open link, and
        whoever comes with its id is most likely itself, started again: it need not wait for the housekeeping."""
        return self._now_ms - one.reading.last_read_ms <= 2 * self.settings.heartbeat_ms

    def epoch_refused(self, address: str, too_far: str) -> None:
        """An alarm, once for each: a peer says an epoch that is not believed."""
        if too_far != self._too_far:
            self._too_far = too_far
            self._note("ha_epoch_refused", "error", f"{address.rpartition(':')[0]}: {too_far}")

    def fence(self, epoch: int) -> None:
        """Somebody heard of a later epoch: nothing is acknowledged any more."""
        if not self.fenced_by:
            self.fenced_by = epoch
            text = f"a slave heard of epoch {epoch}, this master is of {self.lineage.epoch}: it takes no more puts"
            self._note("ha_fenced", "error", text)
            self._on_fenced(epoch)
            self._settling(self.transfers.end)

    def served(self, connection: HAConnection) -> None:
        self._troubles.pop(_name(connection), None)
        self._troubles.pop(connection.address.rpartition(":")[0], None)
        self._note("ha_connected", "info", f"slave {_name(connection)}: {connection.stand}")

    def refused(self, connection: HAConnection, reason: str) -> None:
        name = _name(connection)
        if not self.role.is_master or connection.only_asks:
            return
        self.refusals += 1
        known = self._troubles.get(name)
        self._troubles[name] = (reason, self._now_ms)
        if known is None or known[0] != reason:
            while len(self._troubles) > CONNECTIONS_MAX:
                del self._troubles[next(iter(self._troubles))]
            self._note("ha_refused", "error", f"slave {name}: {reason}")

    def acknowledged(self, connection: HAConnection) -> None:
        self.push2_slave_max_offset = max(self.push2_slave_max_offset, connection.slave_ack_offset)
        if not self.fenced_by:
            self._settling(lambda: self.transfers.acknowledged(self.acks().values()))


def _name(connection: HAConnection) -> str:
    return connection.slave or connection.address.rpartition(":")[0] or connection.address
