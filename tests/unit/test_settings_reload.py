"""SIGHUP has the configuration read again: what may change does, the rest is said, and a bad file changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from node.access_rows import Right
from node.changing_keys import NODE_TABLES, Change, change_of, keys_of, value_of
from node.config import known_keys, load, read_again
from node.engine.engine import Engine
from node.engine.member_handshake import Trust
from node.protocol.codes import FlushMode
from node.store.memory_store import MemoryStore
from node.views.state import StateView
from tests.ports import free_ports
from tests.unit.engine_kit import running, until

# Another value of every key that may change while a member runs; the test fails where one is missing here.
OTHERS: dict[str, Any] = {
    "node.flush": "async", "node.lease_reads": True, "node.preferred_leaders": ["n0"],
    "node.max_pending_requests_num": 77, "node.max_pending_entries": 78, "node.max_pending_bytes": 79_000,
    "node.peer_push_quota_bytes_per_s": 80, "node.max_leadership_transfer_wait_index": 81, "node.secret": "optional",
    "node.allow_plaintext": True, "node.log_level": "warning", "store.max_unsynced_bytes": 82_000,
    "store.scrub_bytes_per_s": 83, "store.scrub_pause_s": 84,
    "retention.enabled": True, "retention.file_reserved_hours": 5, "retention.delete_when": ["07"],
    "retention.disk_space_ratio_to_check_expired": 0.5, "retention.disk_space_ratio_to_force_clean": 0.6,
    "retention.enable_disk_force_clean": False, "retention.disk_full_ratio": 0.99, "retention.max_log_bytes": 10**12,
    "retention.check_interval_s": 86, "timing.heart_beat_time_interval_ms": 90, "timing.election_timeout_min_ms": 700,
    "timing.election_timeout_max_ms": 1400, "timing.min_vote_interval_ms": 31, "timing.max_vote_interval_ms": 151,
    "timing.max_push_time_out_ms": 1001, "timing.max_wait_ack_time_ms": 2001,
    "timing.leadership_transfer_wait_timeout_ms": 1002, "access.rows": ["anonymous = read"],
}  # fmt: skip


def written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


def write(path: Path, values: dict[str, Any]) -> None:
    tables: dict[str, list[str]] = {}
    for key, value in values.items():
        table, _, name = key.partition(".")
        tables.setdefault(table, []).append(f"{name} = {written(value)}")
    path.write_text("\n".join(line for table, lines in tables.items() for line in (f"[{table}]", *lines)) + "\n")


class Members:
    """Of one group, in this process, each with a file; `hang_up` is SIGHUP."""

    def __init__(self, place: Path, size: int) -> None:
        ports = free_ports(size)
        self.peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        self.token = place / "token"
        self.token.touch(0o600)
        self.token.write_text("a-token-of-these-members")
        self.secret = place / "secret"
        self.secret.touch(0o600)
        self.secret.write_text("a-secret-of-these-members-" * 2)
        self.files = {f"n{number}": place / f"n{number}.toml" for number in range(size)}
        self.more: list[str] = []  # as if it were in the files, too
        self.said: list[tuple[str, str, str]] = []
        self.levels: list[str] = []
        self.engines: dict[str, Engine] = {}
        for name, path in self.files.items():
            path.touch()
            self.engines[name] = self.engine(name, place)

    def words(self, name: str, place: Path) -> list[str]:
        return [
            "--id", name, "--peers", self.peers, "--data", str(place / name), "--config", str(self.files[name]),
            "--set", f"node.token_file={self.token}", "--set", f"node.secret_file={self.secret}",
        ]  # fmt: skip

    def engine(self, name: str, place: Path) -> Engine:
        words = self.words(name, place)
        settings = read_again(words, {})
        engine = Engine(settings, MemoryStore(store_id=name), on_event=self.note)
        engine.settings_reload.follow(lambda: read_again([*words, *self.more], {}), engine.files, self.levels.append)
        return engine

    def note(self, kind: str, severity: str, detail: dict[str, Any]) -> None:
        if kind.startswith("settings_") or kind in ("not_reread", "reread"):
            self.said.append((kind, severity, str(detail["reason"])))

    def hang_up(self, name: str, values: dict[str, Any]) -> StateView:
        write(self.files[name], values)
        self.engines[name].files.again()
        return self.state(name)

    def state(self, name: str) -> StateView:
        engine = self.engines[name]
        view = engine.introspection.view("state", None, lambda: engine.replica.status(engine.now_ns()))
        assert isinstance(view, StateView)
        return view


@asynccontextmanager
async def members(place: Path, size: int = 1) -> AsyncIterator[Members]:
    made = Members(place, size)
    async with running(list(made.engines.values())):
        yield made


def alarms(state: StateView) -> dict[str | None, str | None]:
    return {one.code: one.text for one in state.alarms or ()}


def test_every_key_is_either_changed_while_a_member_runs_or_not() -> None:
    assert {change_of(key) for key in known_keys()} == set(Change)
    assert change_of("peers") is Change.RESTART
    live = [key for key in known_keys() if change_of(key) is Change.LIVE]
    assert sorted(live) == sorted(OTHERS)
    defaults = load({}, None, {})
    assert not [key for key, value in OTHERS.items() if value_of(defaults, key) == value]
    assert set(keys_of(NODE_TABLES)) > set(live)


def test_every_key_that_may_change_does_and_is_in_force(tmp_path: Path) -> None:
    async def story() -> None:
        async with members(tmp_path) as group:
            engine = group.engines["n0"]
            state = group.hang_up("n0", OTHERS)
            assert group.said[0] == ("settings_changed", "info", f"in force from now on: {', '.join(in_order(OTHERS))}")
            wanted = read_again(group.words("n0", tmp_path), {})
            for key in OTHERS:
                assert value_of(engine.settings, key) == value_of(wanted, key), key
            config = engine.replica.config
            assert (config.flush, config.lease_reads, config.preferred_leaders) == (FlushMode.ASYNC, True, ("n0",))
            assert (config.pending_requests_max, config.pending_entries_max) == (77, 78)
            assert (config.pending_bytes_max, config.unsynced_bytes_max) == (79_000, 82_000)
            assert (config.catch_up_bytes_per_s, config.max_transfer_wait_index) == (80, 81)
            timing = config.timing
            assert (timing.heartbeat_ns, timing.election_min_ns, timing.election_max_ns) == (9e7, 7e8, 14e8)
            assert (timing.vote_retry_min_ns, timing.vote_retry_max_ns) == (31e6, 151e6)
            assert (timing.push_timeout_ns, timing.closure_timeout_ns) == (1001e6, 2001e6)
            assert timing.transfer_deadline_ns == 1002e6
            assert engine._metronome.longest_ns == 101.25e6 and engine.duties.disk.flush is FlushMode.ASYNC
            assert group.levels == ["warning"]
            assert state.flush == "async" and state.lease_reads is True
            assert state.timing is not None and state.timing.election_timeout_min_ms == 700
            assert state.scrub is not None and (state.scrub.bytes_per_s, state.scrub.pause_s) == (83, 84)
            assert state.retention is not None and state.retention.enabled
            assert alarms(state) == {}
            assert state.settings is not None and (state.settings.restart_needed, state.settings.refused) == ((), ())

    asyncio.run(story())


def in_order(keys: Sequence[str] | dict[str, Any]) -> list[str]:
    return [key for key in known_keys() if key in keys]


def test_what_cannot_change_is_said_until_it_is_in_force_or_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with members(tmp_path) as group:
            fixed = {"store.page_cache_bytes": 5, "node.snapshots_kept": 9, "node.group": "h", "node.init": True}
            state = group.hang_up("n0", fixed)
            assert [one[:2] for one in group.said] == [("settings_not_changed", "warning")] * 3 + [("reread", "info")]
            assert [one[2] for one in group.said[:3]] == [
                "restart needed: node.snapshots_kept, store.page_cache_bytes",
                "fixed since this store was made, a start with it will be refused: node.group",
                "without effect on a store that is there: node.init",
            ]
            keys = ("node.snapshots_kept", "store.page_cache_bytes")
            assert state.settings is not None and state.settings.restart_needed == keys
            fixed_reason = "fixed since this store was made, a start with it will be refused: set it back"
            (refused,) = state.settings.refused or ()
            assert (refused.key, refused.reason) == ("node.group", fixed_reason)
            assert alarms(state) == {
                "restart_needed": f"restart needed: {', '.join(keys)}",
                "settings_refused": f"not changed: node.group: {fixed_reason}",
            }
            assert group.engines["n0"].settings.node.group == "default"
            assert alarms(group.hang_up("n0", {})) == {}

    asyncio.run(story())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[timing]\nelection_timeout_min_ms = 5000\n", "election_timeout_min_ms must be below"),
        ("[node]\nflsh = 'async'\n", "unknown key node.flsh; did you mean node.flush?"),
        ("[node\n", "Expected ']'"),
        ("[access]\nrows = ['token /nowhere/at/all = read']\n", "/nowhere/at/all"),
    ],
)
def test_a_bad_file_changes_nothing_and_raises_an_alarm_that_a_good_one_ends(
    tmp_path: Path, text: str, says: str
) -> None:
    async def story() -> None:
        async with members(tmp_path) as group:
            before = group.engines["n0"].settings
            group.files["n0"].write_text(f"{text}[node]\nlog_level = 'error'\n" if "[node" not in text else text)
            group.engines["n0"].files.again()
            state = group.state("n0")
            alarm = str(alarms(state)["file_not_reread"])
            assert alarm.startswith("the configuration: ") and says in alarm and "stays in force" in alarm
            assert ("not_reread", "error") in [one[:2] for one in group.said]
            assert group.engines["n0"].settings is before and group.levels == []
            assert alarms(group.hang_up("n0", {"node.log_level": "error"})) == {}
            assert group.levels == ["error"]

    asyncio.run(story())


def test_what_was_changed_stays_in_force_when_the_files_are_read_once_more(tmp_path: Path) -> None:
    """For a new certificate, say: the parts that are read again by themselves go by what is in force, too."""

    async def story() -> None:
        async with members(tmp_path) as group:
            engine = group.engines["n0"]
            write(group.files["n0"], {"access.rows": ["anonymous = observe"], "node.secret": "optional"})
            for text in (None, None, "[node"):
                if text is not None:
                    group.files["n0"].write_text(text)
                engine.files.again()
                assert engine.client_requests._access._anonymous == Right.OBSERVE
                assert engine.links._handshake.trust.lenient

    asyncio.run(story())


def test_a_file_that_needs_a_restart_is_not_believed_before_it(tmp_path: Path) -> None:
    """Though a key beside it changes what is read of such files at once."""

    async def story() -> None:
        async with members(tmp_path) as group:
            engine = group.engines["n0"]
            before = engine.links._handshake.trust.secrets
            for name in ("secret", "token"):
                other = tmp_path / f"another {name}"
                other.touch(0o600)
                other.write_text(f"another-{name}-of-these-members-" * 2)
                group.more += ["--set", f"node.{name}_file={other}"]
            state = group.hang_up("n0", {"access.rows": ["anonymous = observe"], "node.secret": "optional"})
            assert state.settings is not None
            assert state.settings.restart_needed == ("node.token_file", "node.secret_file")
            assert engine.links._handshake.trust == Trust(secrets=before, required=False)
            assert Right.OPERATE in engine.client_requests._access.of_token("a-token-of-these-members")

    asyncio.run(story())


def test_a_group_is_changed_member_by_member_and_what_would_not_be_safe_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with members(tmp_path, 3) as group:
            engines = group.engines.values()
            await until(lambda: all(one.replica.leader_id is not None for one in engines))
            await until(
                lambda: all(peer.hello is not None for one in engines for peer in one.replica.peers.of.values())
            )
            slow = {"timing.heart_beat_time_interval_ms": 400, "timing.election_timeout_min_ms": 900}
            state = group.hang_up("n0", slow)
            assert state.settings is not None and state.settings.refused is not None
            assert [one.key for one in state.settings.refused] == list(slow)
            assert "raise that one on all members first" in str(state.settings.refused[0].reason)
            assert str(alarms(state)["settings_refused"]).startswith("not changed: timing.heart")
            assert ("settings_refused", "error") in [one[:2] for one in group.said]
            assert state.timing is not None and state.timing.election_timeout_min_ms == 500

            wanted = {"node.flush": "async", "node.lease_reads": True, "timing.election_timeout_min_ms": 900}
            for name in group.engines:
                assert "settings_refused" not in alarms(group.hang_up(name, wanted))
            await until(lambda: not any(one.replica.settings.under_way for one in engines))
            for name in group.engines:
                state = group.state(name)
                assert (state.flush, state.lease_reads) == ("async", True) and "settings_differ" not in alarms(state)
            await until(lambda: any(one.replica.promise_lease(one.now_ns()) > 500_000_000 for one in engines))

    asyncio.run(story())
