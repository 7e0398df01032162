"""Places at the member port (SAFETY C10): who may stay, who goes for whom, and what all may hold together."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from typing import Any

import pytest

from node.descriptors import DESCRIPTORS_KEPT, Descriptors
from node.engine import listener, places
from node.engine.listener import listen
from node.engine.memory_share import MOST
from node.engine.places import (
    CLIENTS_MAX,
    FRAME_SILENT_S,
    FRAME_WITHIN_S,
    LOOK_EVERY_S,
    MIB,
    NEWEST_SHARE,
    PLACES_MIN,
    UNPROVEN_FRAME_BYTES_MAX,
    UNPROVEN_MAX,
    UNPROVEN_WITHIN_S,
    UNTAKEN_S,
    Place,
    Places,
)
from node.transport.connection import Connection


class Peer:
    """One connection, as far as its place is concerned."""

    def __init__(self, port: Port) -> None:
        self.port, self.ended = port, ""
        self.whole_reads = self.unfinished_bytes = self.frame_memory_bytes = self.backlog_bytes = 0
        self.reading_stopped = False
        self.spared = 0
        self.place = port.places.take(self.end)
        self.place.connection = self

    def end(self, why: str) -> None:
        assert not self.ended
        self.ended = why

    def part(self, size_bytes: int = 1) -> None:
        """Bytes of an unfinished frame."""
        self.unfinished_bytes += size_bytes
        self.frame_memory_bytes = self.unfinished_bytes
        self.port.places.part_came(self.place)

    def whole(self) -> None:
        self.unfinished_bytes = self.frame_memory_bytes = 0
        self.whole_reads += 1

    def earn(self, *, member: bool = False) -> None:
        self.whole()
        self.port.places.earned(self.place, member=member)

    def stop_reading(self, _why: str) -> None:
        self.reading_stopped = True

    def resume_reading(self, _why: str) -> None:
        self.reading_stopped = False

    def spare_memory(self) -> None:
        self.spared += 1


class Port:
    def __init__(self) -> None:
        self.places = Places()

    def peers(self, count: int) -> list[Peer]:
        return [Peer(self) for _ in range(count)]

    def clients(self, count: int, *, member: bool = False) -> list[Peer]:
        made = []
        for _ in range(count):
            made.append(Peer(self))
            made[-1].earn(member=member)
        return made

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_EVERY_S)):
            self.places.look(LOOK_EVERY_S)


@pytest.fixture
def port() -> Port:
    return Port()


def ended(peers: list[Peer]) -> list[int]:
    return [number for number, one in enumerate(peers) if one.ended]


# --- places ---------------------------------------------------------------------------------------------------------


def test_the_newest_always_gets_in_and_the_longest_silent_goes(port: Port) -> None:
    old = port.peers(UNPROVEN_MAX)
    spoke = [3, 5]
    for number in spoke:
        old[number].part()
    fresh = port.peers(10)
    assert not ended(fresh)
    assert ended(old) == [0, 1, 2, 4, 6, 7, 8, 9, 10, 11]  # those that have said nothing, in their order
    assert len(port.places.unproven) == UNPROVEN_MAX
    assert port.places.view().ended == {"a place": 10}


def test_a_member_that_has_begun_its_proof_outlives_any_number_of_silent_ones(port: Port) -> None:
    port.peers(UNPROVEN_MAX)
    member = Peer(port)
    member.whole()  # its HELLO; the PROOF is on its way
    port.peers(20 * UNPROVEN_MAX)
    assert not member.ended
    member.earn(member=True)
    port.peers(20 * UNPROVEN_MAX)
    port.clients(2 * CLIENTS_MAX)
    assert not member.ended


def test_who_comes_while_strangers_hold_half_frames_has_time_to_speak(port: Port) -> None:
    """Its first bytes are a round trip away. It alone had said nothing, so the next one to come took its place."""
    for one in port.peers(UNPROVEN_MAX):
        one.part()
    newcomer = Peer(port)
    for _ in range(UNPROVEN_MAX // NEWEST_SHARE - 1):
        port.peers(1)[0].part()
    assert not newcomer.ended


def test_where_all_places_are_clients_the_longest_idle_goes_and_no_member(port: Port) -> None:
    members = port.clients(5, member=True)
    clients = port.clients(CLIENTS_MAX)
    port.pass_s(2)
    for one in clients[1:]:
        one.whole()
    port.pass_s(1)
    (new,) = port.clients(1)
    assert ended(clients) == [0] and not new.ended and not ended(members)
    assert len(port.places.clients) == CLIENTS_MAX


@pytest.mark.parametrize("stuck", [True, False])
def test_who_works_outlives_a_flood_of_clients(port: Port, stuck: bool) -> None:
    """More than there are places came between two looks, and the one that had been there longest went for them."""
    (steady,) = port.clients(1)
    for _ in range(6):
        steady.whole()
        port.pass_s(LOOK_EVERY_S)
        flood = port.clients(2 * CLIENTS_MAX)
        for one in flood:
            one.reading_stopped = stuck and not one.ended  # it takes no answers, and asks for more
        assert not steady.ended
    assert len(port.places.clients) == CLIENTS_MAX


def test_who_is_not_read_from_goes_before_who_was_active_as_lately(port: Port) -> None:
    first, stuck, last = port.clients(3)
    stuck.reading_stopped = True
    port.clients(CLIENTS_MAX - 2)
    assert stuck.ended and not first.ended and not last.ended


def test_there_are_as_many_places_as_descriptors(port: Port) -> None:
    port.places.descriptors_left = lambda open_now: 40 - open_now
    clients = port.clients(30)
    port.peers(200)
    assert len(port.places.unproven) + len(port.places.clients) <= 40
    assert len(ended(clients)) <= 20 and port.places.limit == 40
    port.places.descriptors_left = lambda open_now: 20 - open_now  # the store opened more files
    port.pass_s(LOOK_EVERY_S)
    assert len(port.places.unproven) + len(port.places.clients) == 20
    port.places.descriptors_left = lambda _open_now: -100
    port.pass_s(LOOK_EVERY_S)
    assert port.places.limit == PLACES_MIN


def test_who_left_holds_nothing(port: Port) -> None:
    one = Peer(port)
    one.part(3 * MIB)
    port.places.leave(one.place)
    port.places.leave(one.place)
    assert port.places.view().unproven == 0 and not port.places._memory_bytes
    port.places.earned(one.place, member=False)  # an answer came too late
    assert port.places.view().clients == 0


# --- deadlines ------------------------------------------------------------------------------------------------------


def test_the_unproven_have_a_deadline_whatever_they_send(port: Port) -> None:
    silent, talker, shaking = port.peers(3)
    shaking.place.connection = None  # TLS
    for _ in range(round((UNPROVEN_WITHIN_S - LOOK_EVERY_S) / LOOK_EVERY_S)):
        talker.whole()
        port.pass_s(LOOK_EVERY_S)
    assert not (silent.ended or talker.ended or shaking.ended)
    port.pass_s(2 * LOOK_EVERY_S)
    assert silent.ended == talker.ended == "nothing valid in time" and shaking.ended == "no handshake"


def test_a_client_may_be_idle_for_ever_but_not_inside_a_frame(port: Port) -> None:
    idle, half, slow, good = port.clients(4)
    for _ in range(4):
        half.part()
        port.pass_s(1)
    seconds = 0.0
    while not slow.ended:
        assert (seconds := seconds + 1) < 2 * FRAME_WITHIN_S
        good.part()
        port.pass_s(0.5)
        good.whole()  # frame after frame
        slow.part()
        port.pass_s(0.5)
    assert half.ended == "silence in a frame" and slow.ended == "a slow frame" and seconds >= FRAME_WITHIN_S - 1
    port.pass_s(1000)
    assert not (idle.ended or good.ended) and idle.spared


def test_a_member_has_no_deadline_here(port: Port) -> None:
    (member,) = port.clients(1, member=True)
    member.part(2 * MOST.unfinished)
    port.pass_s(1000)
    assert not member.ended


def test_who_is_not_read_from_is_not_silent(port: Port) -> None:
    (client,) = port.clients(1)
    client.part()
    client.reading_stopped = True
    port.pass_s(10 * FRAME_WITHIN_S)
    assert not client.ended
    client.reading_stopped = False
    port.pass_s(FRAME_SILENT_S + 1)
    assert client.ended


def test_a_machine_that_was_paused_ends_nobody_for_it(port: Port) -> None:
    one = Peer(port)
    port.places.look(3600)
    assert not one.ended


# --- memory ---------------------------------------------------------------------------------------------------------


def test_unfinished_frames_of_strangers_are_bounded_in_their_sum(port: Port) -> None:
    rng = random.Random(7)
    peers = port.peers(60)
    read_bytes = 256 * 1024
    for _ in range(400):
        reading = [one for one in peers if not one.ended and not one.reading_stopped]
        if reading:
            rng.choice(reading).part(read_bytes)
        port.pass_s(LOOK_EVERY_S if not reading or rng.random() < 0.02 else 0)
        held = sum(one.memory_bytes for one in port.places.unproven)
        assert held <= MOST.unproven + len(peers) * read_bytes  # whoever is over it reads once more at most
    assert "memory" in port.places.counts.ended


def test_a_first_frame_is_no_longer_than_the_longest_entry(port: Port) -> None:
    peer = Peer(port)
    peer.part(UNPROVEN_FRAME_BYTES_MAX + 1)
    assert peer.ended == "a long first frame"


def test_the_oldest_frame_yields_and_young_ones_wait(port: Port) -> None:
    clients = port.clients(20)
    clients[0].part(MIB)
    port.pass_s(6)  # that one has been at it for 6 s
    clients[0].part()
    for one in clients[1:]:
        one.part(4 * MIB)
    assert clients[0].ended == "memory" and ended(clients) == [0]
    waiting = [one for one in clients if one.reading_stopped]
    assert waiting  # more than fits, and nobody was at it for long
    for one in clients[1:]:
        if not one.reading_stopped:
            one.whole()
    port.pass_s(LOOK_EVERY_S)
    assert not [one for one in clients if one.reading_stopped]


def test_answers_that_nobody_takes_end_who_asked_for_most(port: Port) -> None:
    clients = port.clients(10)
    for number, one in enumerate(clients):
        one.backlog_bytes = (number + 1) * MOST.untaken // 40
    port.pass_s(LOOK_EVERY_S)

    assert clients[9].ended == "untaken answers" and not clients[0].ended
    slow = clients[0]
    for _ in range(round(UNTAKEN_S) + 2):
        slow.backlog_bytes -= 1  # it takes a little all the time
        port.pass_s(1)
    assert not slow.ended
    port.pass_s(UNTAKEN_S + 2)
    assert slow.ended == "untaken answers"


def test_answers_in_their_sum_are_bounded_when_they_are_sent_and_not_at_the_next_look(port: Port) -> None:
    """Ten that asked for 16 KiB thousands of times had a name server take 131 MiB within half a second."""
    clients, (member,) = port.clients(40), port.clients(1, member=True)
    member.backlog_bytes = 10 * MOST.untaken
    port.places.answers_wait(member.place)
    for one in clients:
        one.backlog_bytes = MOST.untaken // 20 + clients.index(one)
        port.places.answers_wait(one.place)
        assert sum(other.backlog_bytes for other in clients if not other.ended) <= MOST.untaken
    assert len(ended(clients)) == 21 and not member.ended  # each the one with most to take, which was the newest
    assert port.places.view().ended == {"untaken answers": 21}

    for one in clients:
        one.backlog_bytes = 0  # all is taken, and none is looked at: the sum that was counted is no reason to end any
    clients[0].backlog_bytes = MOST.untaken - 1
    port.places.answers_wait(clients[0].place)
    assert len(ended(clients)) == 21
    clients[0].backlog_bytes = 0
    for one in clients:
        if not one.ended:
            port.places.leave(one.place)
    assert port.places._untaken_bytes == 0


# --- accepting ------------------------------------------------------------------------------------------------------


def test_descriptors_are_kept_for_the_store() -> None:
    descriptors = Descriptors()
    left = descriptors.left(0)
    assert left <= descriptors.limit - DESCRIPTORS_KEPT - 3
    assert descriptors.left(10) == left - 10


class Accepting:
    """A listener whose connections are kept, with the places it asks."""

    def __init__(self) -> None:
        self.places = Places()
        self.connections: list[Connection] = []

    def made(self, place: Place) -> Connection:
        def opened(connection: Connection) -> None:
            place.connection = connection
            self.connections.append(connection)

        return Connection(lambda _one, _frame: None, lambda _one: self.places.leave(place), opened)

    async def until(self, fact: Any) -> None:
        for _ in range(6000):
            if fact():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it never came")


def test_an_accept_that_fails_ends_a_stranger_and_not_the_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        one = Accepting()
        monkeypatch.setattr(listener, "AFTER_ERROR_S", 0.01)
        port = await listen("127.0.0.1", 0, None, one.places, one.made)
        first = socket.create_connection(("127.0.0.1", port.port))
        await one.until(lambda: one.connections)
        (listening,) = port._sockets  # type: ignore[attr-defined]
        failures = iter([errno.EMFILE, errno.ENFILE, errno.ENOBUFS])

        class Failing:
            def accept(self) -> Any:
                number = next(failures, None)
                if number is None:
                    return listening.accept()
                raise OSError(number, "none left")

            def __getattr__(self, name: str) -> Any:
                return getattr(listening, name)

        port._sockets[:] = [Failing()]  # type: ignore[attr-defined]
        port._pause(0)  # type: ignore[attr-defined]
        second = socket.create_connection(("127.0.0.1", port.port))
        await one.until(lambda: len(one.connections) == 2)
        assert one.connections[0].closed and not one.connections[1].closed
        assert one.places.view().accept_errors == 3 and one.places.view().ended == {"descriptors": 1}
        for opened in (first, second):
            opened.close()
        await one.until(lambda: not one.places.unproven)
        port.close()

    asyncio.run(main())


def test_more_than_there_are_places_are_accepted_and_the_first_ones_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(places, "UNPROVEN_MAX", 8)
        one = Accepting()
        port = await listen("127.0.0.1", 0, None, one.places, one.made)
        sockets = []
        for number in range(40):
            sockets.append(socket.create_connection(("127.0.0.1", port.port)))
            await one.until(lambda wanted=number + 1: one.places.counts.accepted == wanted)
        await one.until(lambda: sum(not each.closed for each in one.connections) <= 8)
        assert len(one.places.unproven) == 8
        assert await asyncio.get_running_loop().run_in_executor(None, sockets[0].recv, 1) == b""
        for opened in sockets:
            opened.close()
        await one.until(lambda: not one.places.unproven)
        port.close()

    asyncio.run(main())
