"""A broker's place in its pair: what it is, whom it sends to, whom it follows, and how it becomes another one.

    pair = Pair(settings, store, keeper, note)
    await pair.open()                    # as what it starts; Raises MessageStoreError, OSError

A master of an earlier epoch that starts again asks the other brokers first, and a running one asks them again and
again: a later one that is met makes it a slave, on record, so a pair never has two for longer than it takes to ask. So
does one whose log is empty where another broker has the pair's: its disk was replaced, and it begins no other pair.

Invariants: an epoch is on disk before the first put of it is taken; who met a later epoch takes no more puts, whatever
its configuration says; a slave never becomes master by itself.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Final

from node.background import Background, reason_of
from node.broker.classic.role_record import RoleRecord, read_role, write_role
from node.config import Settings, split_address
from node.ha.asking import EpochTooFar, NoMaster, ask
from node.ha.client import Done, HAClient, Kept, State, Work
from node.ha.handshake import Hello, hello_of
from node.ha.keeper import StoreKeeper
from node.ha.lineage import EPOCH_MAX, Lineage, read_lineage, write_lineage
from node.ha.proof import Proof
from node.ha.service import HAService
from node.ha.settings import BrokerRole, HaSettings
from node.ha.sockets import AcceptSocketService, HAClientService
from node.member_secret import make_secret, read_secrets
from node.message_store.local_store import LocalMessageStore
from node.message_store.rebuild import NOWHERE
from node.message_store.write_files import Disk, OsDisk
from node.protocol.peers import is_everywhere

Note = Callable[[str, str, str], None]
Others = list[tuple[str, Hello | NoMaster]]
PAIR_DIGITS: Final = 4


def ha_settings(settings: Settings) -> HaSettings:
    ha = settings.ha
    return HaSettings(
        in_sync_replicas=ha.in_sync_replicas, slave_timeout_ms=ha.slave_timeout_ms,
        slave_fall_behind_max_bytes=ha.slave_fall_behind_max_bytes, transfer_batch_bytes=ha.transfer_batch_bytes,
        proof=_proof(settings), admits=_admits(settings), heartbeat_ms=ha.heartbeat_ms,
        housekeeping_ms=ha.housekeeping_ms,
        flow_control_bytes_s=ha.flow_control_bytes_per_s, reconnect_ms=ha.reconnect_ms, cuts_back=ha.cuts_back,
    )  # fmt: skip


def _proof(settings: Settings) -> Proof | None:
    """Raises ConfigError."""
    path = settings.node.secret_file
    if path is None:
        return None
    if settings.node.make_secret:
        make_secret(path)
    return Proof(read_secrets(path))


def _admits(settings: Settings) -> Callable[[str], bool]:
    """Who may come without a proof, by IP address."""
    networks = [ip_network(one) for one in settings.ha.networks]
    has_secret = settings.node.secret_file is not None

    def admits(ip: str) -> bool:
        try:
            return any(ip_address(ip.strip("[]")) in one for one in networks) if networks else not has_secret
        except ValueError:
            return False

    return admits


def dense_from(lineage: Lineage) -> int:
    """From where on no queue offset comes twice: the first master of ours began there. What lies before is RocketMQ's,
    as far as is known."""
    return lineage.epochs[0][1] if lineage.epochs else NOWHERE


def _on_own_disk(write: Callable[[Disk], None]) -> None:
    """In a thread. Raises OSError."""
    disk = OsDisk()
    try:
        write(disk)
    finally:
        disk.close()


class Pair:
    """See the module's docstring. `on_role` is called after each change of role."""

    def __init__(self, settings: Settings, store: LocalMessageStore, keeper: StoreKeeper, note: Note) -> None:
        self._settings, self.store, self.keeper, self._note = settings, store, keeper, note
        keeper.pages.keep_bytes = settings.store.page_cache_bytes
        self._root = settings.node.data
        self._writing = asyncio.Lock()  # of the two records below, which are written in a thread
        self.configured = BrokerRole(settings.ha.role.upper())
        self.record = read_role(self._root)
        self.run = secrets.token_hex(8)
        self.on_role: list[Callable[[], None]] = []
        lineage, own = read_lineage(self._root), ha_settings(settings)
        self.service = HAService(store.log, own, BrokerRole.SLAVE, lineage, note, self._fenced)
        self.accept = AcceptSocketService(self.service)
        self.client = HAClient(store, own, settings.node.id, self.run, lineage, self._keep, note, self._alone)
        self._configured_peers = [split_address(one) for one in settings.ha.peer_addresses]
        self._learned: dict[str, tuple[str, int]] = {}  # by name server: where it says that the master is
        self._turn = itertools.count()
        self.twin = ""  # the address of another master of the same epoch
        self.following = ""  # the address of the master that this slave tries
        self.follower = HAClientService(self.client, self._next_peer, own, keeper.wake)
        self._background = Background(lambda name, error: note("task_failed", "error", f"{name}: {reason_of(error)}"))
        self._task: asyncio.Task[None] | None = None
        self._cutting: asyncio.Task[None] | None = None
        self._on_disk = lineage
        self._promised = EPOCH_MAX + 1  # the epoch that a promotion which is under way is to begin
        self.contested_by = 0  # one at or above it, which was heard of meanwhile: another broker is being promoted, too
        store.dispatcher.dense_from = dense_from(lineage)
        self.service.on_heard = self._heard
        self.service.broker = settings.broker.address
        store.slaves = self.service
        self.service.on_statuses.append(store.settle)

    @property
    def role(self) -> BrokerRole:
        return self.service.role

    @property
    def lineage(self) -> Lineage:
        return self.service.lineage

    @property
    def is_master(self) -> bool:
        return self.role.is_master and not self.service.fenced_by

    @property
    def broker_id(self) -> int:
        """As it is registered: a master is 0."""
        return 0 if self.is_master else self._settings.ha.broker_id

    @property
    def wanted(self) -> BrokerRole:
        """What it starts as: by its record, else by its configuration."""
        if self.record is None:
            return self.configured
        both_master = self.record.role.is_master and self.configured.is_master
        return self.configured if both_master else self.record.role

    def needed_from(self) -> int | None:
        """The lowest place that a connected slave still needs."""
        return min(self.service.acks().values(), default=None)

    def renew_secrets(self, secrets: Sequence[bytes]) -> None:
        """Takes the secrets that the secret file holds now."""
        proof = self.service.settings.proof
        assert proof is not None
        proof.renew(secrets)

    # --- a start and an end -----------------------------------------------------------------------------------------
    async def open(self) -> None:
        """It listens before it asks: of two that start at once, at least one hears of the other.

        Raises MessageStoreError, OSError, of which CannotListen."""
        host, port = split_address(self._settings.ha.address)
        await self.accept.begin_accept(host, port)
        if self.wanted.is_master and (why := await self._replaced()):
            await self._record(BrokerRole.SLAVE, why)
            self._note("ha_slave", "warning", why)
        if self.wanted.is_master:
            await self._begin_epoch(self.wanted)
        self._run()

    async def _replaced(self) -> str:
        """Why it is not the master that it was, or is configured to be; empty: it is."""
        said = [(at, one) for at, one in await self.masters() if isinstance(one, Hello)]
        own = self.lineage  # with what it was asked about meanwhile
        if own.pair:
            heard = [one.lineage.newest for _at, one in said if one.lineage.pair == own.pair]
            epoch = max([own.heard, *heard])
            return f"a promotion of epoch {epoch} was heard of at the start" if epoch > own.epoch else ""
        known = next(((at, one.lineage.pair) for at, one in said if one.lineage.pair), None)
        if known is None or self.store.log.max_offset > self.store.log.min_offset:
            return ""
        return f"its log is empty, and {known[0]} has one of pair {known[1]}: an empty disk begins no other pair"

    def _run(self) -> None:
        """What a master, or a slave, does all the time."""
        if self._task is not None:
            self._task.cancel()
        named = "looking for a later master" if self.role.is_master else "following the master"
        self._task = self._background.keep(named, self._watch if self.role.is_master else self.follower.run)
        for hear in self.on_role:
            hear()

    async def close(self) -> None:
        await self._background.stop()
        await self.accept.close()
        self.client.close("this broker stops")

    # --- roles ------------------------------------------------------------------------------------------------------
    async def _begin_epoch(self, role: BrokerRole, *, is_promoted: bool = False, above: int = 0) -> None:
        """It is master from here on, fenced where a later epoch was heard of meanwhile. Raises MessageStoreError,
        OSError: it is not."""
        pair = f"{self._settings.node.group}-{secrets.token_hex(PAIR_DIGITS)}"
        await self.keeper.flushed_and_dispatched()  # what is below the start of an epoch is on disk
        start = self.store.log.max_offset  # nothing is put, and nobody is followed, until this ends
        await self._kept(lambda now: now.begun(pair, start, is_promoted=is_promoted, above=above))
        lineage = self.lineage
        self.store.become_master()
        self.service.role, self.service.fenced_by = role, 0
        self._note("ha_master", "info", f"{role.value} of pair {lineage.pair}, epoch {lineage.epoch} from {start} on")
        if lineage.newest > lineage.epoch:
            self.service.fence(lineage.newest)

    async def promote(self, role: BrokerRole, above: int, by: str, agree: Callable[[Others], None]) -> int:
        """The epoch that began: this slave is master now (`is_master`), unless a later one was heard of meanwhile.

        `above`: the newest that is known of the pair; `agree` gets what the others hold once none of them follows an
        older master any more, and raises where that ends it, or another promotion that was heard of (`contested_by`).

        Raises what `agree` raises, MessageStoreError, OSError: it is a slave still.
        """
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.client.close("this broker becomes master")
        if self._cutting is not None:  # where its log ends is known once that is over
            await asyncio.wait([self._cutting])
        above = max(above, self.lineage.newest)
        try:
            self._promised, self.contested_by = self.lineage.promoted_above(above), 0
            await self._kept(lambda now: now.hearing(self._promised))
            agree(await self.masters())
            await self._begin_epoch(role, is_promoted=True, above=above)
            if self.is_master:
                await self._record(role, f"promoted by {by or 'an operator'}, epoch {self.lineage.epoch}")
        finally:
            self._promised = EPOCH_MAX + 1
            self._run()
        return self.lineage.epoch

    def _fenced(self, epoch: int) -> None:
        """A slave, or another broker, heard of a later epoch."""
        self.store.become_slave()
        why = f"a later master is there, of epoch {epoch}"
        self._background.keep("becoming a slave", partial(self._step_down, why))

    async def _step_down(self, why: str) -> None:
        await self._record(BrokerRole.SLAVE, why)
        self.service.end(why)
        self.service.role, self.service.fenced_by = BrokerRole.SLAVE, 0
        self._note("ha_slave", "warning", why)
        self._run()

    # --- what a restart has to find ---------------------------------------------------------------------------------
    async def _record(self, role: BrokerRole, why: str, master: BrokerRole | None = None) -> None:
        """Raises OSError."""
        async with self._writing:
            record = RoleRecord(role, why, master)
            await asyncio.to_thread(_on_own_disk, partial(write_role, self._root, record))
            self.record = record

    async def _kept(self, change: Callable[[Lineage], Lineage]) -> None:
        """The epochs, on disk. Raises OSError: they are as they were."""
        async with self._writing:
            lineage = change(self.lineage)
            if lineage != self._on_disk:
                await asyncio.to_thread(_on_own_disk, partial(write_lineage, self._root, lineage))
                self._on_disk = lineage
            self.store.dispatcher.dense_from = dense_from(lineage)
            self.service.lineage = self.client.lineage = lineage.hearing(self.lineage.heard)

    @property
    def role_of_master(self) -> BrokerRole | None:
        """What the master is, or was, that this slave follows, also before its last start. None: it is not known."""
        said = "" if self.client.master is None else self.client.master.role
        if said in (BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER):
            return BrokerRole(said)
        return None if self.record is None else self.record.master

    def _keep(self, lineage: Lineage, then: Kept) -> None:
        """Keeps the master's lineage on disk: this slave follows it from now on."""

        async def kept() -> None:
            try:
                await self._kept(lambda now: lineage.hearing(now.heard))
                record, master = self.record, self.role_of_master
                if record is None:  # or a start with another role would make a second master of it, unasked
                    await self._record(BrokerRole.SLAVE, f"it follows a master of epoch {lineage.epoch}", master)
                elif master not in (None, record.master):
                    await self._record(record.role, record.why, master)
            except OSError as error:
                then(reason_of(error))
                raise
            then("")

        self._background.run("keeping the master's epochs", kept())

    def _alone(self, work: Work, done: Done) -> None:
        """It begins at once: nobody who waits for `_cutting` finds it missing."""

        async def cut() -> None:
            try:
                found: int | Exception = await self.keeper.exclusively(work)
            except Exception as error:  # or it would cut for ever
                found = error
            done(found)

        self._cutting = self._background.run("cutting the log", cut())

    def _heard(self, epoch: int, then: Callable[[], None]) -> None:
        """Somebody was promoted, or is about to be: nothing more comes from an older master."""
        if epoch >= self._promised:
            self.contested_by = epoch
        self.client.hear(epoch)
        self.service.lineage = self.client.lineage

        async def kept() -> None:
            await self._kept(lambda now: now)
            then()

        self._background.run("keeping a promotion's epoch", kept())

    # --- the other brokers ------------------------------------------------------------------------------------------
    @property
    def _peers(self) -> list[tuple[str, int]]:
        """Those that are configured, and where name servers say that the master is."""
        return list(dict.fromkeys([*self._configured_peers, *self._learned.values()]))

    @property
    def is_lost(self) -> bool:
        """No master serves this slave."""
        return not self.role.is_master and self.client.state is not State.TRANSFER

    def learned(self, name_server: str, ha_address: str) -> None:
        """A name server answers where the master listens for slaves. Who is there has to prove what it is, as others
        do. Nothing of one that is no address, or this broker's own."""
        try:
            found = split_address(ha_address)
        except ValueError as error:
            self._note("ha_address_refused", "warning", f"{name_server} says that the master is at {error}")
            return
        if ha_address != self.own_address and self._learned.get(name_server) != found:
            self._learned[name_server] = found
            self._note("ha_address_learned", "info", f"{name_server} says that the master is at {ha_address}")

    @property
    def own_address(self) -> str:
        """Where the other brokers reach this one."""
        host, port = split_address(self._settings.ha.address)
        if is_everywhere(host):
            host = split_address(self._settings.broker.address)[0]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _next_peer(self) -> tuple[str, int] | None:
        peers = self._peers
        found = peers[next(self._turn) % len(peers)] if peers else None
        self.following = "" if found is None else f"{found[0]}:{found[1]}"
        return found

    async def masters(self) -> Others:
        """What each of the others says of itself, by its address. Being asked fences an older master, and ends that
        a slave follows one."""
        own, proof, peers = hello_of(self.store.log, self.lineage), self.service.settings.proof, self._peers
        said = await asyncio.gather(*(ask(one, own, proof) for one in peers), return_exceptions=True)
        found: list[tuple[str, Hello | NoMaster]] = []
        for (host, port), one in zip(peers, said, strict=True):
            if isinstance(one, EpochTooFar):
                self.service.epoch_refused(f"{host}:{port}", str(one))
            if isinstance(one, Hello | NoMaster):
                found.append((f"{host}:{port}", one))
            else:
                raise one
        return found

    async def _watch(self) -> None:
        """An older master that returns hears of this one's epoch, and a later one is heard of."""
        while True:
            await asyncio.sleep(self._settings.ha.reconnect_ms / 1000)
            self.twin = ""
            for address, said in await self.masters():
                if not isinstance(said, Hello) or said.lineage.pair != self.lineage.pair:
                    continue
                if said.lineage.newest > self.lineage.epoch:
                    self._note("ha_later_master", "error", f"{address} heard of epoch {said.lineage.newest}")
                    self.service.fence(said.lineage.newest)
                elif said.role == BrokerRole.SLAVE.value:
                    continue
                elif said.lineage.epoch == self.lineage.epoch:
                    self.twin = address
                else:
                    text = f"{address} was master of epoch {said.lineage.epoch}, and hears of {self.lineage.epoch}"
                    self._note("ha_older_master", "warning", text)
