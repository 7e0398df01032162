"""What the engine says of itself, relayed: a copied snapshot, never work that the engine does for us.

Invariants: many callers within CACHE_S cost the engine one question; an answer says how true it is (`engine: ok`;
`stale`: it does not answer, this is what it said last; `down`: it does not run, and why). What nobody knows is null and
listed.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from node.config import Settings
from node.control.engine_link import EngineAway, EngineForeign, EngineLink, EngineRefused, EngineSilent
from node.control.log_files import LogFiles
from node.protocol.codes import RequestCode

Json = dict[str, Any]
CACHE_S = 0.05
TIMEOUT_S = 0.4
REASON_FILE = "engine-refused.json"
EMPTY: dict[str, Json] = {
    "watermarks": {
        "quorum_index": None,
        "needed": None,
        "peers": [],
        "term": None,
        "leader_id": None,
        "end_index": None,
        "committed_index": None,
        "applied_index": None,
    },
    "dispatchers": {"items": [], "next": None},
    "closures": {"pending": None, "limit": None, "oldest_age_ms": None, "groups": [], "items": []},
    "events": {"items": [], "next": None},
}


def now_s() -> float:
    """For ages only; the loop's own clock."""
    return asyncio.get_running_loop().time()


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Snapshots:
    """One per control plane."""

    def __init__(self, settings: Settings, link: EngineLink, files: LogFiles) -> None:
        self.settings, self.link, self.files = settings, link, files
        self.last: dict[str, tuple[float, Json]] = {}
        self.locks: dict[str, asyncio.Lock] = {}
        self.unheard_since: str | None = None

    async def get(self, what: str) -> Json:
        """`state`, `watermarks`, `dispatchers` or `closures`, at most CACHE_S old while the engine answers."""
        async with self.locks.setdefault(what, asyncio.Lock()):
            known = self.last.get(what)
            if known is not None and now_s() - known[0] < CACHE_S:
                return known[1]
            try:
                answer = await self.ask(what, None)
            except EngineAway as error:
                return await self.without_engine(what, "down", self.down_reason(error))
            except (EngineSilent, EngineRefused) as error:
                return await self.without_engine(what, "stale", str(error))
            self.unheard_since = None
            self.last[what] = (now_s(), answer)
            return answer

    def outdate(self) -> None:
        """After a write through this control plane: whoever asks next sees it."""
        self.last = {what: (0.0, answer) for what, (_, answer) in self.last.items()}

    async def ask(self, what: str, since: str | None) -> Json:
        fields: Json = {"what": what} | ({"since": since} if since is not None else {})
        answer = await self.link.json(RequestCode.INTROSPECT, fields, TIMEOUT_S)
        if "as_of" not in answer:
            raise EngineRefused(str(answer.get("detail") or f"the engine refused: {answer.get('code')}"))
        return answer

    async def events(self, since: str | None) -> Json:
        try:
            return await self.ask("events", since)
        except (EngineAway, EngineSilent, EngineRefused) as error:
            engine = "down" if isinstance(error, EngineAway) else "stale"
            return {**self.common(engine, str(error)), "items": [], "next": since}

    def common(self, engine: str, reason: str) -> Json:
        self.unheard_since = self.unheard_since or now_text()
        return {"as_of": now_text(), "engine": engine, "engine_reason": reason, "boot_id": None}

    async def without_engine(self, what: str, engine: str, reason: str) -> Json:
        """The last answer, marked as what it is; without one, what the files tell."""
        common = self.common(engine, reason)
        known = self.last.get(what)
        missing = [{"field": what, "reason": f"the engine is {engine}: {reason}", "since": self.unheard_since}]
        if known is not None:
            body = {**known[1], "engine": engine, "engine_reason": reason}
            if engine == "down":
                body |= self.ended(what)
            return body | {"unknown": [*known[1].get("unknown", []), *missing]}
        if what != "state":
            return {**common, **EMPTY[what], "unknown": missing}
        return {**common, **await self.state_from_files(), "unknown": missing}

    def ended(self, what: str) -> Json:
        """What a process that is gone cannot be any more."""
        return {"role": None, "leader_id": None, "transferee": None} if what == "state" else EMPTY[what]

    async def state_from_files(self) -> Json:
        settings = self.settings
        log: Json = dict.fromkeys(
            ("begin_index", "end_index", "end_term", "durable_index", "committed_index", "applied_index", "size_bytes",
             "committed_chain_crc")
        )  # fmt: skip
        log |= await self.files.marks()
        return {
            "group": settings.node.group,
            "self_id": settings.node.id,
            "role": None,
            "term": None,
            "leader_id": None,
            "voted_for": None,
            "transferee": None,
            "flush": settings.node.flush.value,
            "data_dir": str(settings.store_directory),
            "voter_state": None,
            "log": log,
            "peers": [
                {"id": key, "address": address, "control_url": own_url(settings) if key == settings.node.id else None}
                for key, address in settings.peers.items()
            ],
            "disk": {},
            "alarms": [],
            "version": None,
        }

    def down_reason(self, tried: EngineAway) -> str:
        """Who listens there instead; what the engine or its supervisor wrote down at its end; else that nobody does."""
        if isinstance(tried, EngineForeign):
            return str(tried)
        try:
            note = json.loads((self.settings.node.data / REASON_FILE).read_text())
            return str(note["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            return f"nothing answers at its port ({tried})"


def own_url(settings: Settings) -> str:
    scheme = "https" if settings.control.tls_cert_file is not None else "http"
    return f"{scheme}://{settings.control.address}"
