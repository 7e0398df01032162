"""`trim`: one running member removes the oldest data files of its own log, or says what would go and who keeps it.

Invariant: without --force nothing goes that another member is not known to hold, or that somebody has pinned.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.commands.endings import Exit
from app.commands.one_member import OneMember, end_of
from app.commands.output import JsonOption, show, show_json
from app.commands.targets import I64_MAX, TokenFileOption
from app.commands.tls_options import CaOption


def trim(
    node: Annotated[str, typer.Option(metavar="URL", help="The control plane of the member whose log it is.")],
    through: Annotated[
        int,
        typer.Option(
            "--through", metavar="INDEX", min=0, max=I64_MAX, help="The last entry that may go; whole files only."
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and who keeps what.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Past pins, and members that are not known to hold these entries.")
    ] = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> int:
    """Have one member remove the oldest data files of its log."""
    one = OneMember.at(node, token_file, ca)
    member = one.state().self_id
    body = {"through_index": through, "force": force}
    if dry_run:
        found = one.call("POST", "trim", {**body, "dry_run": True})
        plan = found.get("trim") or {}
        if as_json:
            show_json({"node": member, "dry_run": True, **plan})
        else:
            show(f"{member} would {found.get('would')}; its log would begin at entry {plan.get('begin_index')}")
            print_kept(plan.get("kept_by") or [], force)
        return Exit.FINDING if plan.get("kept_by") and not force else Exit.FINE
    done = one.followed("trim", f"{member} removes files", body)
    outcome: dict[str, Any] = done.get("outcome") or {}
    if as_json:
        show_json({"node": member, "state": done["state"], **outcome, "problem": done.get("problem")})
    else:
        removed = f"{outcome.get('removed_files', 0)} data files, {outcome.get('removed_bytes', 0)} bytes"
        show(f"{member} removed {removed}: its log begins at entry {outcome.get('begin_index')}")
        print_kept(outcome.get("kept_by") or [], force)
        if done.get("problem"):
            show(str(done["problem"].get("detail")))
    if outcome.get("kept_by") and not force:
        return Exit.FINDING
    return end_of(done)


def print_kept(kept_by: list[dict[str, Any]], force: bool) -> None:
    """Who keeps entries, or is left behind by force, and why."""
    for one in kept_by:
        word = "left behind" if force else "kept for"
        text = f"{word} {one.get('owner')}, from entry {one.get('from_index')} on: it {one.get('why')}"
        show(text)


def register(app: typer.Typer) -> None:
    """Adds this family's command."""
    app.command()(trim)
