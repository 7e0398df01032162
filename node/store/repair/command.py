"""`python -m node.store.repair DIR [one action]`: decisions about a stopped member's store that only an operator may
take.

Without an action it says what is wrong and which command settles it. Every action runs on a dry run first; with
`--dry-run` that is all. So one that refuses has changed nothing, and both say the same.

Invariants: neither engine nor supervisor nor a RocketMQ broker runs there: the store's own lock is taken, and
`DATA/lock` from before the first write to after the last. Nothing is asked, so scripts can run it; the result goes to
stdout as text or JSON, a refusal to stderr in one line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from node.printable import escaped
from node.store.errors import StoreError
from node.store.files.data_lock import DataLock
from node.store.files.platform import OS, Platform
from node.store.repair.actions import accept_loss, discard_from, set_term
from node.store.repair.adopt import adopt_after_java
from node.store.repair.dry_run import DryRun
from node.store.repair.from_member import heal_from
from node.store.repair.problems import look
from node.store.repair.recover_members import Wanted, recover_members
from node.store.repair.report import Report
from node.store.repair.reset_term import reset_term

FINE, FINDING = 0, 1
Action = Callable[[Path, Platform], Report]


def perform(action: Action, directory: Path, *, dry_run: bool, platform: Platform = OS) -> Report:
    """Tries it where nothing can happen, then does it. Raises StoreError: a trial that fails changes nothing."""
    report = _alone(action, directory, DryRun(platform))
    if not dry_run:
        report = _alone(action, directory, platform)
    report.dry_run = dry_run
    return report


def _alone(action: Action, directory: Path, platform: Platform) -> Report:
    """No engine, no supervisor and no RocketMQ broker has the data directory, and none can start meanwhile."""
    lock = DataLock(directory.absolute().parent, platform, alone=True)
    try:
        return action(directory, platform)
    finally:
        lock.release()


def _action(options: argparse.Namespace) -> Action | None:
    """The one that was asked for; None: only a look."""
    if options.sources:
        return lambda directory, platform: heal_from(directory, options.sources, platform)
    if options.set_term is not None:
        return lambda directory, platform: set_term(directory, options.set_term, platform)
    if options.reset_term is not None:
        return lambda directory, platform: reset_term(directory, options.reset_term, options.group_token, platform)
    if options.discard_from is not None:
        return lambda directory, platform: discard_from(directory, options.discard_from, platform)
    if options.accept_loss:
        return lambda directory, platform: accept_loss(directory, options.term, platform)
    if options.keep:
        wanted = Wanted(options.keep, options.peer, options.group_token, options.log_of)
        return lambda directory, platform: recover_members(directory, wanted, platform)
    if options.adopt:
        return lambda directory, platform: adopt_after_java(directory, platform, options.group, options.id)
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m node.store.repair", description=__doc__)
    parser.add_argument("directory", type=Path)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--from", dest="sources", type=Path, action="append", default=[], metavar="OTHER_DIR")
    what.add_argument("--set-term", type=int, metavar="N")
    what.add_argument("--reset-term", type=int, metavar="N")
    what.add_argument("--discard-from", type=int, metavar="N")
    what.add_argument("--accept-loss", action="store_true")
    what.add_argument("--adopt", action="store_true")
    what.add_argument("--keep", action="append", default=[], metavar="ID[=TERM:END_TERM:END]", help="a survivor")
    parser.add_argument("--log-of", metavar="ID", help="with --keep: whose log goes on, though another one is newer")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="ID", help="with --keep: a member since the birth"
    )
    parser.add_argument("--term", type=int, metavar="N", help="with --accept-loss: the group's highest term")
    parser.add_argument("--group-token", default="", help="with --reset-term or --keep: makes the group's new id")
    parser.add_argument("--group", help="with --adopt, where quorumscope.json is lost")
    parser.add_argument("--id", help="with --adopt, where quorumscope.json is lost")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--json", action="store_true", dest="as_json")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: done, or nothing is wrong; 1: something is (still) wrong, or refused (the reason on stderr)."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.term is not None and not options.accept_loss:
        parser.error("--term goes with --accept-loss only")
    if options.group_token and options.reset_term is None and not options.keep:
        parser.error("--group-token goes with --reset-term and --keep only")
    if (options.log_of or options.peer) and not options.keep:
        parser.error("--log-of and --peer go with --keep only")
    if (options.group or options.id) and not options.adopt:
        parser.error("--group and --id go with --adopt only")
    action = _action(options)
    try:
        if action is None:
            report = look(options.directory, OS)
        else:
            report = perform(action, options.directory, dry_run=options.dry_run)
    except (StoreError, OSError) as error:
        print(escaped(f"repair: {error}"), file=sys.stderr)
        return FINDING
    print(json.dumps(report.as_json(), ensure_ascii=False) if options.as_json else report.as_text())
    return FINDING if report.has_findings else FINE
