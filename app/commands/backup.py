"""`backup DIR`, `backup verify DIR`: what a group has committed, and the console's database, in a directory.

A second run into the same directory adds what is new; with `--keep` each run makes a full set of its own below it, and
older ones go. `--every` does that over and over. Invariants: 0 means that the back-up is whole and, with `--verify`,
that it was restored and compared; a run that fails leaves what was there.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.commands.directories import existing_directory
from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, say, show, show_json
from app.commands.targets import ConfigOption, GroupOption, TokenFileOption, demo_meant, settings_of, token_of
from app.commands.tls_options import CaOption, TlsFlags
from app.why_unreached import authority_hint

if TYPE_CHECKING:
    from app.audit.replicas import ReplicaSpec
    from app.backup.run import What
    from node.config import Settings

VERIFY: Final = "verify"
PROGRESS_EVERY_S: Final = 2.0
SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
EVERY_S_MAX: Final = 366 * 86400
KEEP_MAX: Final = 10_000
Json = dict[str, Any]


def backup(
    words: Annotated[list[str], typer.Argument(metavar="[verify] DIR", help="Where to; verify: test what is there.")],
    nodes: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="URL", help="The member's control plane; repeatable, the first that answers."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Instead: the directory of a member on this machine.")
    ] = None,
    db: Annotated[
        str | None,
        typer.Option("--db", metavar="FILE", help="The console's database too, or alone."),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Then restore it to a directory that goes again.")] = False,
    scratch: Annotated[
        Path | None, typer.Option("--scratch", metavar="DIR", help="Where --verify restores to; DIR otherwise.")
    ] = None,
    every: Annotated[str | None, typer.Option("--every", metavar="6h", help="Over and over; 30m, 6h, 1d.")] = None,
    keep: Annotated[
        int | None,
        typer.Option("--keep", metavar="N", min=1, max=KEEP_MAX, help="Each run makes a full set; the newest N stay."),
    ] = None,
    group: GroupOption = None,
    config: ConfigOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> int:
    """Back up what is committed, or only what is new; or test it."""
    directory, is_test = _meant(words)
    if is_test:
        if nodes or data or db or every or keep is not None or verify:
            raise Failure(Exit.USAGE, "backup verify DIR takes --scratch and --json only")
        return _test(directory, scratch, as_json)
    if nodes and data:
        raise Failure(Exit.USAGE, "give --node or --data, not both")
    if scratch is not None and not verify:
        raise Failure(Exit.USAGE, "--scratch goes with --verify")
    pause_s = None if every is None else _seconds(every)
    what = _what(nodes or [], data, db, group, config, token_file, ca)
    job = Job(what, directory, keep, scratch, is_tested=verify)
    if pause_s is None:
        return _print(carried_out(job.run), as_json)
    return _over_and_over(job, pause_s, as_json)


def _meant(words: list[str]) -> tuple[Path, bool]:
    if len(words) == 2 and words[0] == VERIFY:
        return Path(words[1]), True
    if len(words) != 1 or words[0] == VERIFY:
        raise Failure(Exit.USAGE, "backup DIR, or backup verify DIR (a directory of that name: ./verify)")
    return Path(words[0]), False


def _seconds(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    seconds = 0 if match is None else int(match[1]) * SECONDS[match[2]]
    if not 0 < seconds <= EVERY_S_MAX:
        raise Failure(Exit.USAGE, f"--every {text}: write how often, such as 30m, 6h or 1d")
    return seconds


def _what(
    nodes: list[str], data: Path | None, db: str | None, group: str | None, config: Path | None,
    token_file: Path | None, ca: Path | None,
) -> What:  # fmt: skip
    """Which member is read, and which database. Raises Failure."""
    from app.audit.replicas import ReplicaSpec
    from app.backup.run import What

    def spec(url: str, token: str | None, authority: Path | None) -> ReplicaSpec:
        full = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/api/v1")
        return ReplicaSpec("http", full, None, token, None if authority is None else str(authority), group)

    if data is not None:
        return What((), data, db)
    token = token_of(token_file)
    if nodes:
        return What(tuple(spec(url, token, ca) for url in nodes), None, db)
    if config is not None:
        return What((_own(settings_of({"node.group": group}, config), token, ca, spec),), None, db)
    if db is not None:
        return What((), None, db)
    demo = demo_meant("--node URL or --data DIR")
    if demo is None:
        text = "back up what? give --node http://127.0.0.1:8431, --data DIR of a member, or --db FILE of the console"
        raise Failure(Exit.USAGE, text)
    return What(tuple(spec(one.control_url, token, ca) for one in demo.members), None, None)


def _own(settings: Settings, token: str | None, ca: Path | None, spec: Callable[..., ReplicaSpec]) -> ReplicaSpec:
    """The control plane of the member whose configuration it is."""
    from node.control_url import control_url

    own = settings.control_token_file
    authority = TlsFlags(ca).over(settings).ca  # as of every command with --config
    return spec(control_url(settings), token or (None if own is None else token_of(own)), authority)


@dataclass(frozen=True, slots=True)
class Job:
    """One back-up, as often as it is wanted."""

    what: What
    directory: Path
    keep: int | None
    scratch: Path | None
    is_tested: bool

    def run(self) -> Json:
        """Raises what `carried_out` knows."""
        from app.backup.sets import add_set

        return self._into(self.directory) if self.keep is None else add_set(self.directory, self.keep, self._a_set)

    def _a_set(self, directory: Path) -> Json:
        """One that nothing can be restored from takes no sound one's place. Raises BackupRefused."""
        from app.backup.taking import BackupRefused

        result = self._into(directory)
        if result["lacks_state"] is not None:
            raise BackupRefused(f"{result['lacks_state']}; this set is not kept, and no other one goes: try again")
        return result

    def _into(self, directory: Path) -> Json:
        from app.backup.run import back_up, verify

        result = back_up(self.what, directory, Progress())
        if self.is_tested:
            say("backup: restoring it to a directory that goes again")
            result |= {"verified": True, "restored": verify(directory, self.scratch)["restored"]}
        return result


class Progress:
    """Says now and then how far a back-up is."""

    def __init__(self) -> None:
        self.said_at = time.monotonic()

    def __call__(self, entries: int, bytes_read: int) -> None:
        if time.monotonic() - self.said_at >= PROGRESS_EVERY_S:
            self.said_at = time.monotonic()
            say(f"backup: {entries:,} entries, {bytes_read / 1e6:,.0f} MB")


def carried_out(work: Callable[[], Json]) -> Json:
    """What `work` raises, with the exit code that it means. Raises Failure."""
    from app.backup.run import TrialFailed
    from app.backup.source import SourceError
    from app.backup.taking import BackupRefused
    from node.store.errors import StoreError

    try:
        return work()
    except SourceError as error:
        code = Exit.DENIED if error.is_denied else Exit.UNREACHABLE if error.is_away else Exit.FINDING
        raise Failure(code, f"{error}{authority_hint(str(error))}") from error
    except (BackupRefused, TrialFailed, StoreError) as error:
        raise Failure(Exit.FINDING, str(error)) from error
    except OSError as error:
        raise Failure(Exit.UNDETERMINED, str(error)) from error


def _over_and_over(job: Job, pause_s: int, as_json: bool) -> int:
    """A run that fails is said, and the next one comes at its time; Ctrl-C ends it."""
    while True:
        began_s = time.monotonic()
        try:
            _print(carried_out(job.run), as_json)
        except Failure as failure:
            if failure.code == Exit.USAGE:
                raise
            say(f"quorumscope: {failure}; the next back-up begins in {pause_s} s")
        time.sleep(max(0.0, began_s + pause_s - time.monotonic()))


def _print(result: Json, as_json: bool) -> int:
    ending = Exit.FINE if result["lacks_state"] is None else Exit.FINDING
    for note in result["notes"]:
        say(f"backup: {note}")
    if as_json:
        show_json(result)
        return ending
    if result["group"] is not None:
        more = "" if result["new_entries"] == result["entries"] else f", {result['new_entries']:,} of them new"
        text = f"entries {result['begin_index']} to {result['end_index']} of group {result['group']}{more}"
        show(f"{result['directory']}: {text}, {result['bytes'] / 1e6:,.1f} MB, read from {result['source']}")
    if result["console_db"] is not None:
        show(f"{result['directory']}: the console's database of {result['console_db_made_at']}")
    if result["verified"]:
        show("restored and compared: it is whole")
    for name in result.get("removed", []):
        show(f"removed {name}")
    return ending


def _test(directory: Path, scratch: Path | None, as_json: bool) -> int:
    """One back-up, or each of several below the directory."""
    from app.backup.run import verify
    from app.backup.sets import newest_in, sets_in
    from node.store.backup.manifest import MANIFEST

    existing_directory(directory)

    def each() -> Json:
        if (directory / MANIFEST).exists() or not sets_in(directory):
            return {"items": [verify(newest_in(directory), scratch)]}
        return {"items": [_result_of(one, scratch) for one in sets_in(directory)]}

    items = carried_out(each)["items"]
    if as_json:
        show_json(items[0] if len(items) == 1 else {"items": items})
    for one in () if as_json else items:
        text = f"entries {one.get('begin_index')} to {one.get('end_index')} restored and compared: it is whole"
        if one["verified"] and one["group"] is None:
            text = "the console's database is whole"
        show(f"{one['directory']}: {text if one['verified'] else one['problem']}")
    return Exit.FINE if all(one["verified"] for one in items) else Exit.FINDING


def _result_of(one: Path, scratch: Path | None) -> Json:
    from app.backup.run import verify

    try:
        return carried_out(lambda: verify(one, scratch))
    except Failure as failure:
        if failure.code != Exit.FINDING:
            raise
        return {"directory": str(one), "verified": False, "problem": str(failure)}


def register(app: typer.Typer) -> None:
    """Adds this family's command."""
    app.command()(backup)
