"""`ha`: a classic master and its slaves, judged by the console's rules from what their control planes say.

Exit codes: 0 every slave is in step; 1 a problem; 2 not known; 69 no broker answers.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.commands.control_calls import SILENT_AFTER_S, control_answer
from app.commands.endings import Exit, Failure
from app.commands.ha_promote import promote
from app.commands.messages import in_columns
from app.commands.output import JsonOption, show_json, show_lines, terminal_width, wrapped
from app.commands.targets import ConfigOption, TokenFileOption, contexts_of, settings_of, token_of
from app.commands.tls_options import TlsFlags
from node.printable import escaped
from node.views.ha import HaView
from node.views.reading import Unreadable, read

LOOK_AGAIN_S: Final = 3.0
LOOK_EVERY_S: Final = 0.25
BROKERS_MAX: Final = 16
commands = typer.Typer(help="A classic master and its slaves.", no_args_is_help=True, rich_markup_mode=None)
NodesOption = Annotated[
    list[str], typer.Option("--node", metavar="URL", help="A broker's control plane; repeatable, one each.")
]
CaOption = Annotated[Path | None, typer.Option("--ca", metavar="FILE", help="The CA of the control planes (PEM).")]


def asked(url: str, token: str | None, tls: Any) -> HaView | str:
    """What a broker says, or why it says nothing. Raises Failure where it is no broker of a pair."""
    try:
        status, said = control_answer("GET", url, "ha", token, tls=tls, within_s=SILENT_AFTER_S)
    except Failure as failure:
        if failure.code != Exit.UNREACHABLE:
            raise
        return str(failure)
    if status == 404:
        raise Failure(Exit.USAGE, f"{url} is no broker in classic mode (`quorumscope status` shows a group's member)")
    if status >= 400:
        return str(said.get("detail") or said.get("title") or status)
    try:
        return read(HaView, said)
    except Unreadable as error:
        return f"{url}: its answer cannot be read: {error}"


@commands.command("status")
def status(
    nodes: NodesOption,
    ca: CaOption = None,
    token_file: TokenFileOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Show who takes messages, what each slave has acknowledged, what is wrong and what to do."""
    from app.commands.pair_status import judged, problems_of
    from app.commands.status_table import lines_of
    from app.console.pair_view import connections_of, rows_of
    from app.health.facts import INFO
    from app.health.recall import Recall

    if len(nodes) > BROKERS_MAX:
        raise Failure(Exit.USAGE, f"{len(nodes)} brokers; {BROKERS_MAX} at most")
    settings = settings_of({}, config)
    _members, tls = contexts_of(TlsFlags(ca=ca).over(settings))
    token, recall, deadline = token_of(token_file), Recall(), time.monotonic() + LOOK_AGAIN_S
    while True:
        with ThreadPoolExecutor(len(nodes)) as pool:  # one that hangs must not hold up the others
            answers = list(pool.map(lambda url: asked(url, token, tls), nodes))
        if not any(isinstance(one, HaView) for one in answers):
            raise Failure(Exit.UNREACHABLE, f"no broker answers: {'; '.join(map(str, answers))}")
        view = judged(list(zip(nodes, answers, strict=True)), datetime.now(UTC), recall)
        settled = not view.pending and (bool(view.problems) or not view.unproven)
        if settled or time.monotonic() > deadline:
            break
        time.sleep(LOOK_EVERY_S)
    problems = problems_of(view)
    if as_json:
        silent = {"broker": "unknown"}
        brokers = [one.to_json() if isinstance(one, HaView) else silent | {"reason": one} for one in answers]
        show_json(
            {
                "as_of": view.as_of, "severity": view.severity, "sentence": view.sentence.to_json(),
                "master_id": view.leader_id, "epoch": view.term, "brokers": brokers,
                "problems": [one.to_json() for one in problems], "unknown": [one.to_json() for one in view.unproven],
            }
        )  # fmt: skip
    else:
        lines = [f"{view.sentence.headline} {view.sentence.rest}".strip()]
        rows = [("BROKER", "ROLE", "TAKES MESSAGES", "EPOCH", "BEGIN", "FLUSHED", "END", "FILES")]
        rows += [(r.id, r.role, r.takes, r.epoch, r.begin, r.flushed, r.end, r.files) for r in rows_of(view)]
        lines += in_columns(rows)
        if links := connections_of(view):
            heads = [("SLAVE", "STATE", "ITS LOG", "ACKNOWLEDGED", "BEHIND", "FOR", "RATE")]
            heads += [(c.slave, c.state, c.stand, c.acked, c.lag_bytes, c.lag, c.rate) for c in links]
            lines += ["", *in_columns(heads)]
        said = [escaped(line) for one in problems for line in lines_of(one)]
        lines += wrapped(said, terminal_width())
        show_lines(lines)
    if any(one.severity != INFO for one in problems):
        return Exit.FINDING
    return Exit.UNDETERMINED if view.unproven else Exit.FINE


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    commands.command("promote")(promote)
    app.add_typer(commands, name="ha")
