"""`pins list|release`: who keeps old entries of one running member from being removed, and until when.

Invariant: what the member pins for itself is shown and never released; a release names a pin that is there.
"""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from app.commands.endings import Exit, Failure
from app.commands.one_member import OneMember
from app.commands.output import JsonOption, show, show_json, show_lines
from app.commands.targets import TokenFileOption
from app.commands.tls_options import CaOption

commands = typer.Typer(help="Who keeps old entries of a member.", no_args_is_help=True, rich_markup_mode=None)
NodeOption = Annotated[str, typer.Option(metavar="URL", help="The control plane of the member whose log it is.")]
Json = dict[str, Any]


@commands.command("list")
def list_pins(
    node: NodeOption, token_file: TokenFileOption = None, ca: CaOption = None, as_json: JsonOption = False
) -> int:
    """Say who keeps which entries, and for how much longer."""
    one = OneMember.at(node, token_file, ca)
    member = one.state().self_id
    items = one.call("GET", "pins").get("items") or []
    if as_json:
        show_json({"node": member, "items": items})
    else:
        show_lines([f"{member}: {words_of(pin)}" for pin in items] or [f"{member}: nobody has pinned entries"])
    return Exit.FINE


@commands.command()
def release(
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="Whose pin ends, as `pins list` names it.")],
    node: NodeOption,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> int:
    """End a pin whose owner is gone; one that still reads may find its entries removed."""
    one = OneMember.at(node, token_file, ca)
    member = one.state().self_id
    items = one.call("GET", "pins").get("items") or []
    found = next((pin for pin in items if pin.get("owner") == owner), None)
    if found is None:
        known = ", ".join(str(pin.get("owner")) for pin in items) or "none"
        raise Failure(Exit.FINDING, f"{member} has no pin of {owner!r} (it has: {known})")
    if found.get("expires_in_s") is None:
        raise Failure(Exit.FINDING, f"{member} pins that for itself: it ends when {owner} needs it no more")
    one.call("DELETE", f"pins/{quote(owner, safe='')}")
    if as_json:
        show_json({"node": member, "released": found})
    else:
        show(f"{member} keeps nothing for {owner} any more: it had pinned entries from {found.get('from_index')} on")
    return Exit.FINE


def words_of(one: Json) -> str:
    """Who, from where on, until when."""
    left_s = one.get("expires_in_s")
    until = "for as long as it needs them" if left_s is None else f"for {left_s} s more, unless it is renewed"
    return f"{one.get('owner')} keeps entries from {one.get('from_index')} on, {until}"


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(commands, name="pins")
