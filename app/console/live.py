"""Live pages: one event stream per page; a fragment is rendered once per (page, group, node, role) and broadcast.

What a page shows is known here (of groups: from their samples), or is asked of control planes each time it is drawn
(messages); then its renderer is awaited, and the pause until the next time is longer.

Invariants: a topic renders only while somebody listens, at most twice a second, and sends only what changed. A slow
reader misses intermediate states, never the newest, and holds at most one copy of each fragment. `beat` goes out every
2 s even when nothing changes: a page without one knows that it is stale. A stream whose session died says `expired` and
ends; nothing here redirects.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from app.console.errors import ConsoleError
from app.security.roles import ALL, Sight
from app.times import rfc3339, utc_now
from node.background import Background

log = logging.getLogger(__name__)

RENDER_INTERVAL_S = 0.5
ASKED_INTERVAL_S = 1.0  # between two questions to control planes
BEAT_S = 2.0
SUBSCRIBERS_MAX = 400  # the server has more connections than that
SUBSCRIBERS_PER_PERSON = 100
LOOK_EVERY_S = 8.0  # whether a reader would still be let in, with the next beat: ten seconds are promised


@dataclass(frozen=True, slots=True)
class LiveKey:
    """What a fragment may depend on: nothing that differs between two people of one role who see the same groups.

    `role` is that on the group; `sight` matters on pages of several groups; `name` is that of a message topic or of a
    group of consumers, or says what a page lists.
    """

    page: str
    cluster_id: str | None
    node_id: str | None
    role: str
    sight: Sight = ALL
    name: str = ""


@dataclass(frozen=True, slots=True)
class Fragment:
    event: str
    html: str


# Awaitable: what it draws is asked of control planes.
Renderer = Callable[[LiveKey], Sequence[Fragment] | Awaitable[Sequence[Fragment]]]


@dataclass(frozen=True, slots=True)
class Drawn:
    fragments: Sequence[Fragment]
    again_in_s: float


def encode(event: str, data: str) -> bytes:
    """One server-sent event; every line of the data gets its own field."""
    head = f"event: {event}\n" if event else ""
    return (head + "".join(f"data: {line}\n" for line in data.splitlines() or [""]) + "\n").encode()


@dataclass(eq=False, slots=True)
class Subscriber:
    """One open page: what it has still to be sent, newest only."""

    pending: dict[str, bytes] = field(default_factory=dict)
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    # Its topic cannot be rendered any more: the stream ends, so that the page knows.
    ended: bool = False

    def end(self) -> None:
        self.ended = True
        self.woken.set()

    def give(self, event: str, encoded: bytes) -> None:
        self.pending.pop(event, None)
        self.pending[event] = encoded
        self.woken.set()

    def take(self) -> bytes:
        taken = b"".join(self.pending.values())
        self.pending.clear()
        self.woken.clear()
        return taken


@dataclass(slots=True)
class Topic:
    key: LiveKey
    subscribers: set[Subscriber] = field(default_factory=set)
    # Unnamed fragments are identified by their place.
    last: dict[str, bytes] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class Hub:
    """All topics. `stop` ends every stream at once, so that Ctrl-C works with pages open."""

    def __init__(self, render: Renderer) -> None:
        self.render = render
        self.topics: dict[LiveKey, Topic] = {}
        self.stopping = asyncio.Event()
        self.readers: dict[str, list[Subscriber]] = {}  # by person, whatever they signed in with; oldest first
        self.background = Background()

    @property
    def count(self) -> int:
        return sum(map(len, self.readers.values()))

    def admits(self, person: str) -> bool:
        """Whether they may open another stream. Where all places are taken, whoever has most gives their oldest one up
        for somebody who has fewer."""
        mine = len(self.readers.get(person, ()))
        if mine >= SUBSCRIBERS_PER_PERSON:
            return False
        if self.count < SUBSCRIBERS_MAX:
            return True
        most = max(self.readers, key=lambda one: len(self.readers[one]))
        if len(self.readers[most]) <= mine + 1:
            return False
        oldest = self.readers[most][0]
        self.forget(most, oldest)
        oldest.end()
        return True

    def forget(self, person: str, subscriber: Subscriber) -> None:
        """It takes no place any more; nothing where it took none."""
        mine = self.readers.get(person, [])
        if subscriber in mine:
            mine.remove(subscriber)
        if not mine:
            self.readers.pop(person, None)

    def stop(self) -> None:
        self.stopping.set()
        for topic in self.topics.values():
            for subscriber in topic.subscribers:
                subscriber.woken.set()

    async def close(self) -> None:
        self.stop()
        await self.background.stop()

    async def drawn(self, key: LiveKey) -> Drawn:
        """Drawn now, and when that is to be done again. Raises what its renderer raises."""
        fragments = self.render(key)
        if isinstance(fragments, Awaitable):
            return Drawn(await fragments, ASKED_INTERVAL_S)
        return Drawn(fragments, RENDER_INTERVAL_S)

    async def check(self, key: LiveKey) -> None:
        """Raises what its renderer raises, while that can still be the whole answer."""
        if key not in self.topics:
            await self.drawn(key)

    async def stream(
        self, key: LiveKey, alive: Callable[[], Awaitable[bool]], person: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """Everything at once, then what changes; ends when the console stops or the session dies.

        What it was to show may be over before its first byte: it ends then too, and the page, which asks again, gets
        the 404.
        """
        subscriber, topic = Subscriber(), None
        self.readers.setdefault(person, []).append(subscriber)
        try:
            drawn = None if key in self.topics else await self.drawn(key)
            if self.stopping.is_set():
                return
            topic = self.join(key, subscriber, drawn)
            opened = asyncio.get_running_loop().time()
            yield encode("beat", rfc3339(utc_now())) + subscriber.take()
            next_beat, next_look = opened + BEAT_S, opened + LOOK_EVERY_S
            while not (self.stopping.is_set() or subscriber.ended):
                now = asyncio.get_running_loop().time()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, next_beat - now)):
                        await subscriber.woken.wait()
                now = asyncio.get_running_loop().time()
                if now >= next_look:  # by the clock: a reader that takes slowly is behind by many beats
                    next_look = now + LOOK_EVERY_S
                    if not await alive():
                        yield encode("expired", "")
                        return
                data = subscriber.take()
                if now >= next_beat:
                    next_beat += BEAT_S
                    data += encode("beat", rfc3339(utc_now()))
                if data:
                    yield data
        except ConsoleError:
            return
        finally:
            if topic is not None:
                self.leave(topic, subscriber)
            self.forget(person, subscriber)

    def join(self, key: LiveKey, subscriber: Subscriber, drawn: Drawn | None) -> Topic:
        """`drawn` begins a topic that nobody else began meanwhile."""
        topic = self.topics.get(key)
        if topic is None:
            assert drawn is not None
            topic = self.topics[key] = Topic(key)
            self.hand_on(topic, drawn.fragments)
            topic.task = self.background.run(f"live {key.page}", self.run(topic, drawn.again_in_s))
        topic.subscribers.add(subscriber)
        for name, encoded in topic.last.items():
            subscriber.give(name, encoded)
        return topic

    def leave(self, topic: Topic, subscriber: Subscriber) -> None:
        topic.subscribers.discard(subscriber)
        if not topic.subscribers:
            if self.topics.get(topic.key) is topic:
                del self.topics[topic.key]
            if topic.task is not None:
                topic.task.cancel()

    async def run(self, topic: Topic, again_in_s: float) -> None:
        while True:
            await asyncio.sleep(again_in_s)
            try:
                self.hand_on(topic, (await self.drawn(topic.key)).fragments)
            except Exception as error:
                # A page that is not rendered must not look alive: end its streams, they will ask again and get the
                # error.
                if not isinstance(error, ConsoleError):
                    log.exception("rendering %s failed", topic.key)
                self.topics.pop(topic.key, None)
                for subscriber in topic.subscribers:
                    subscriber.end()
                return

    def hand_on(self, topic: Topic, fragments: Sequence[Fragment]) -> None:
        """What changed, to all that listen."""
        for place, fragment in enumerate(fragments):
            name = fragment.event or f"#{place}"
            encoded = encode(fragment.event, fragment.html)
            if topic.last.get(name) != encoded:
                topic.last[name] = encoded
                for subscriber in topic.subscribers:
                    subscriber.give(name, encoded)
