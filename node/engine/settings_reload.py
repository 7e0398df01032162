"""The configuration that the engine reads again on SIGHUP: what may change is in force at once, the rest is said.

A file that cannot be read, or says what does not fit, changes nothing (`node/rereading.py`). Of one that can, every key
that may change while a member runs (`node/changing_keys.py`) is in force afterwards, but for those that the core
refuses as unsafe at the moment; these, and keys that need a restart, stand in `GET state` and under an alarm until a
later SIGHUP finds them in force, or back at what they were.

Invariants: whatever is refused changes nothing; nothing that differs goes without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol

from node.changing_keys import NODE_TABLES, Change, change_of, differences, with_keys
from node.config import Settings
from node.consensus.replica import Replica
from node.engine.access import Access
from node.engine.client_requests import ClientRequests
from node.engine.duties import Duties
from node.engine.introspect import Introspection
from node.engine.member_handshake import Trust
from node.engine.options import client_access, member_trust, replica_config
from node.engine.peer_links import PeerLinks
from node.rereading import Rereading
from node.views.state import AlarmView, RefusedSettingView, SettingsView

CONFIGURATION: Final = "the configuration"
TEXT_MAX: Final = 300
# Keys of the core, which judges them together; of these the first are what the members agree on.
CORE_TABLES: Final = ("node", "timing", "store")
NOT_CORE: Final = frozenset(
    {"node.secret", "node.allow_plaintext", "node.log_level", "store.scrub_bytes_per_s", "store.scrub_pause_s"}
)


class Driver(Protocol):
    """The engine, as far as its settings go."""

    settings: Settings
    replica: Replica
    duties: Duties
    links: PeerLinks
    client_requests: ClientRequests
    introspection: Introspection
    now_ns: Callable[[], int]

    def retimed(self) -> None: ...
    def step(self, step: Callable[[], object]) -> None: ...
    def note(self, kind: str, severity: str, detail: dict[str, Any]) -> None: ...


FIXED = "fixed since this store was made, a start with it will be refused"


class Checked(NamedTuple):
    """A configuration that was read, and what it names was too."""

    settings: Settings
    trust: Trust
    access: Access


class SettingsReload:
    """One per engine."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._set_level: Callable[[str], None] = lambda _level: None
        self._restart_needed: tuple[str, ...] = ()
        self._refused: tuple[RefusedSettingView, ...] = ()
        self._since: dict[str, str] = {}

    def follow(
        self, read: Callable[[], Settings], files: Rereading, set_level: Callable[[str], None] = lambda _level: None
    ) -> None:
        """From now on `read` gives the configuration that is wanted. `set_level`: what is logged from now on."""
        self._set_level = set_level

        def checked() -> Checked:
            settings = read()
            live = self._with_live(settings)
            return Checked(settings, member_trust(live), client_access(live))

        files.add(CONFIGURATION, checked, self.use)

    def use(self, wanted: Checked) -> None:
        """Puts in force what may change."""
        driver, new = self._driver, wanted.settings
        different = differences(driver.settings, new, NODE_TABLES)
        live = [key for key in different if change_of(key) is Change.LIVE]
        refused = self._change_core(self._with_live(new), [key for key in live if _is_core(key)])
        in_force = [key for key in live if key not in {one.key for one in refused}]
        driver.settings = with_keys(driver.settings, new, in_force)
        self._change_others(wanted, set(in_force))
        self._say(different, in_force, refused)

    def _with_live(self, new: Settings) -> Settings:
        """What is in force, with every key from `new` that may change now."""
        before = self._driver.settings
        keys = [key for key in differences(before, new, NODE_TABLES) if change_of(key) is Change.LIVE]
        return with_keys(before, new, keys)

    def _change_core(self, new: Settings, keys: list[str]) -> tuple[RefusedSettingView, ...]:
        driver = self._driver
        if not keys:
            return ()
        config = driver.replica.config
        wanted = replica_config(new, config.api_url or "", applies=config.applies, kind=config.kind)
        reason: list[str | None] = []
        driver.step(lambda: reason.append(driver.replica.change_settings(wanted, driver.now_ns())))
        why = reason[0] if reason else "the engine ends"
        if why is None:
            driver.duties.disk.flush = config.flush
            driver.retimed()
            return ()
        return tuple(RefusedSettingView(key=key, reason=why[:TEXT_MAX]) for key in keys)

    def _change_others(self, wanted: Checked, keys: set[str]) -> None:
        driver = self._driver
        new, duties = driver.settings, driver.duties
        if "node.secret" in keys:
            driver.links.renew_trust(wanted.trust)
        if "access.rows" in keys:
            driver.client_requests.renew_access(wanted.access)
        if "node.log_level" in keys:
            self._set_level(new.node.log_level)
        if any(key.startswith("retention.") for key in keys):
            duties.retention.change(new.retention)
        if any(key.startswith("store.scrub") for key in keys):
            duties.scrubber.change(new.store.scrub_bytes_per_s, new.store.scrub_pause_s)
        driver.introspection.settings_changed(new)

    def _say(self, different: list[str], in_force: list[str], refused: tuple[RefusedSettingView, ...]) -> None:
        note = self._driver.note
        if in_force:
            note("settings_changed", "info", {"reason": f"in force from now on: {', '.join(in_force)}"})
        for change, what in (
            (Change.RESTART, "restart needed"),
            (Change.BIRTH, FIXED),
            (Change.FIRST_START, "without effect on a store that is there"),
        ):
            keys = [key for key in different if change_of(key) is change]
            if keys:
                note("settings_not_changed", "warning", {"reason": f"{what}: {', '.join(keys)}"})
        if refused:
            keys = [one.key for one in refused]
            note("settings_refused", "error", {"reason": f"not changed: {', '.join(keys)}: {refused[0].reason}"})
        fixed = [key for key in different if change_of(key) is Change.BIRTH]
        self._restart_needed = tuple(key for key in different if change_of(key) is Change.RESTART)
        self._refused = (*refused, *(RefusedSettingView(key=key, reason=f"{FIXED}: set it back") for key in fixed))

    # --- for observers --------------------------------------------------------------------------------------------
    def view(self) -> SettingsView:
        return SettingsView(restart_needed=self._restart_needed, refused=self._refused)

    def alarms(self) -> tuple[AlarmView, ...]:
        """What is not in force as the file has it."""
        texts = {}
        if self._restart_needed:
            texts["restart_needed"] = f"restart needed: {', '.join(self._restart_needed)}"
        if self._refused:
            keys_by_reason: dict[str | None, list[str]] = {}
            for one in self._refused:
                keys_by_reason.setdefault(one.reason, []).append(str(one.key))
            said = "; ".join(f"{', '.join(keys)}: {reason}" for reason, keys in keys_by_reason.items())
            texts["settings_refused"] = f"not changed: {said}"
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._since = {code: self._since.get(code, now) for code in texts}
        return tuple(
            AlarmView(code=code, severity="warning", peer_id=None, text=text[:TEXT_MAX], since=self._since[code])
            for code, text in texts.items()
        )


def _is_core(key: str) -> bool:
    return key.partition(".")[0] in CORE_TABLES and key not in NOT_CORE
