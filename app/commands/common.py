"""Parts that all commands share: exit codes, one-line errors, JSON, and which group a command speaks to.

Invariants: results go to stdout, everything else to stderr; a command ends with one of `Exit`'s codes and says why in
one line when that is not 0 (1 and 2 speak through the result itself).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
import shlex
import shutil
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

import typer

from app.answer_time import AnswerTime
from app.commands.tls_options import CaOption, CertOption, KeyOption, TlsFilesError, TlsFlags
from app.commands.unreachable import without_answer
from node.client import Denied, LedgerClient, LedgerError, NotAppended, OutcomeUnknown, Refused, Unreachable
from node.config import ConfigError, Settings, load, read_token
from node.printable import escaped, escaped_json, json_for
from node.protocol.group_id import is_group_id
from node.protocol.peers import check_host, is_address
from node.views.reading import Unreadable, read
from node.views.state import StateView

if TYPE_CHECKING:
    from app.demo.state import DemoState

T = TypeVar("T")
HTTP_TIMEOUT_S: Final = 5.0
I32_MAX: Final = (1 << 31) - 1  # what the fields of requests hold: a larger number is a slip at the keyboard
I64_MAX: Final = (1 << 63) - 1
CONTROL_ANSWER_BYTES_MAX: Final = 16 << 20
CONTROL_ANSWER_S: Final = 60.0  # for all of an answer, beside the time for its first bytes


class Exit(IntEnum):
    """The exit codes (INTERFACES, "Command line")."""

    FINE = 0
    FINDING = 1
    UNDETERMINED = 2
    USAGE = 64
    UNREACHABLE = 69
    UNKNOWN_OUTCOME = 75
    DENIED = 77
    INTERRUPTED = 130


class Failure(Exception):
    """Ends a command with `code`; the message is the one line that stderr gets."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


class NotThere(Failure):
    """A control plane answered 404."""


class ClassicBroker(Failure):
    """The control plane is that of a master or slave in classic mode, no group's."""

    def __init__(self, url: str) -> None:
        text = f"{url} is a broker in classic mode, no member of a group: `quorumscope ha status --node {url}`"
        super().__init__(Exit.USAGE, text)


PeersOption = Annotated[
    str | None, typer.Option("--peers", metavar="ID-HOST:PORT;…", help="The members, as DLedger writes them.")
]
NodeOption = Annotated[
    str | None, typer.Option("--node", metavar="URL", help="Instead of --peers: the control plane of any member.")
]
GroupOption = Annotated[str | None, typer.Option("--group", metavar="NAME", help="The group's name.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A TOML file; flags and QUORUMSCOPE_* go before it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="A file with the API token; $QUORUMSCOPE_TOKEN otherwise."),
]


@dataclass(frozen=True, slots=True)
class Target:
    """One group as a client sees it; `asked`: the member whose control plane named it; `control_tls`: for these."""

    peers: Mapping[str, str]
    group: str
    token: str | None = None
    control_urls: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    control_tls: ssl.SSLContext | None = None
    group_id: str | None = None
    asked: str | None = None
    itself: StateView | None = None  # what `asked` said, where its own log says that it is no member (any more)
    demo: bool = False
    has_brokers: bool = False  # of a demo
    starts: Mapping[str, str] = field(default_factory=dict)  # what starts members again, where this machine knows it
    unanswered: str = ""  # of --node: why its control plane was not heard: the members are known from elsewhere

    def client(self, deadline_s: float = 10.0, only: str | None = None) -> LedgerClient:
        """A client of the group, or of one member `only`; the caller closes it."""
        peers = dict(self.peers) if only is None else {only: self.peers[only]}
        return LedgerClient(
            peers, group=self.group, group_id=self.group_id, deadline_s=deadline_s, token=self.token, tls=self.tls
        )


def say(line: str) -> None:
    """Progress and remarks for people on stderr, a line each; one that cannot be written changes no exit code."""
    with contextlib.suppress(OSError):
        print(escaped(line), file=sys.stderr, flush=True)


def show(line: str) -> None:
    """One line of a result for people, on stdout; also to a pipe, where something may read line by line."""
    print(escaped(line), flush=True)


def show_lines(lines: Iterable[str]) -> None:
    """Several of them: an element is a line."""
    print("\n".join(map(escaped, lines)), flush=True)


def terminal_width() -> int | None:
    """How many characters a line of stdout has room for; None where it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show_json(value: Any) -> None:
    """A result as JSON on stdout."""
    on_terminal = sys.stdout.isatty()
    text = json_for(sys.stdout, value, 2 if on_terminal else None)
    print(escaped_json(text) if on_terminal else text, flush=True)


def settings_of(overrides: Mapping[str, Any], config: Path | None, flags: Mapping[str, str] | None = None) -> Settings:
    """`node.config.load`, with its errors as usage errors. Raises Failure."""
    try:
        return load(overrides, config, flag_names=flags)
    except ConfigError as error:
        raise Failure(Exit.USAGE, str(error)) from error


def token_of(token_file: Path | None) -> str | None:
    """The API token: a file that was named, else $QUORUMSCOPE_TOKEN. Raises Failure."""
    if token_file is None:
        token = os.environ.get("QUORUMSCOPE_TOKEN", "").strip()
        if not token.isascii() or not token.isprintable():
            raise Failure(Exit.USAGE, "$QUORUMSCOPE_TOKEN holds characters that no token has: is all of it the token?")
        return token or None
    try:
        return read_token(token_file)
    except ConfigError as error:
        raise Failure(Exit.USAGE, str(error)) from error


def target_of(
    peers: str | None, node: str | None, group: str | None, config: Path | None, token_file: Path | None = None,
    tls: TlsFlags | None = None,
) -> Target:  # fmt: skip
    """Which group a command means: --node, else --peers or the configuration, else the demo that runs here.

    Raises Failure.
    """
    token = token_of(token_file)
    if peers and node:
        raise Failure(Exit.USAGE, "give --peers or --node, not both")
    settings = settings_of({"peers": peers, "node.group": group}, config)
    shown, checked = contexts_of((tls or TlsFlags()).over(settings))
    configured = None
    if settings.peers:
        shared = token or token_of(settings.node.token_file)
        own = {} if config is None else {settings.node.id: shlex.join(["quorumscope", "node", "--config", str(config)])}
        configured = Target(settings.peers, settings.node.group, shared, tls=shown, control_tls=checked, starts=own)
    if node:
        return _target_from_control(node, group, token, shown, checked, configured)
    if configured is not None:
        return configured
    demo = demo_meant("--node URL or --peers")
    if demo is not None:
        return Target(token=token, **demo.target)
    raise Failure(Exit.USAGE, "which group? give --peers n0-127.0.0.1:20911;n1-… or --node http://127.0.0.1:8431")


def reached(
    peers: PeersOption = None,
    node: NodeOption = None,
    group: GroupOption = None,
    config: ConfigOption = None,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    cert_key: KeyOption = None,
) -> Target:
    """The group that is meant. Its parameters are the options of every command that `in_group` decorates."""
    return target_of(peers, node, group, config, token_file, TlsFlags(ca, cert, cert_key))


def in_group(command: Callable[..., int], unless: str | None = None) -> Callable[..., int]:
    """A command whose first parameter is the group: on the command line `reached`'s options stand for it, in front of
    `--json`. Where the option `unless` is given, no group is meant, and it gets None."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    where = list(inspect.signature(reached, eval_str=True).parameters.values())
    names = [one.name for one in own]
    place = names.index("as_json") if "as_json" in names else len(own)

    @functools.wraps(command)
    def run(**given: Any) -> int:
        named = {one.name: given.pop(one.name) for one in where}
        if unless is not None and given[unless] is not None:
            return command(None, **given)
        try:
            target = reached(**named)
        except ClassicBroker:
            raise
        except Failure as failure:
            hint = f"; or --{unless}" if unless is not None and failure.code == Exit.USAGE else ""
            raise Failure(failure.code, f"{failure}{hint}") from failure
        return command(target, **given)

    every = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*own[:place], *where, *own[place:])]
    run.__signature__ = inspect.Signature(every, return_annotation=int)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in every} | {"return": int}
    return run


def demo_meant(flags: str) -> DemoState | None:
    """The running demo that a command without an address takes, and which one that is, on stderr. Raises Failure."""
    from app.demo.state import SeveralDemos, running_demo

    try:
        demo = running_demo()
    except SeveralDemos as several:
        raise Failure(Exit.USAGE, f"{several}; name one with {flags}") from several
    if demo is not None:
        say(f"speaking to the demo that is running ({demo.spelled}); {flags} names another")
    return demo


def contexts_of(flags: TlsFlags) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """(for members, for control planes). Raises Failure."""
    try:
        return flags.for_members(), flags.for_control_planes()
    except TlsFilesError as error:
        raise Failure(Exit.USAGE, str(error)) from error


def _target_from_control(
    url: str, group: str | None, token: str | None, shown: ssl.SSLContext | None, checked: ssl.SSLContext | None,
    configured: Target | None,
) -> Target:  # fmt: skip
    from app.commands.unanswered import asked_elsewhere
    from app.demo.state import demo_of

    demo = demo_of(url)
    if demo is not None and group in (None, demo.group):
        configured = Target(token=token, asked=demo.member_at(url), **demo.target)
    try:
        state = control_state(url, group, token, checked, HTTP_TIMEOUT_S / (1 if configured is None else 2))
    except Failure as failure:
        return asked_elsewhere(failure, configured)
    if configured is not None and configured.demo:
        return configured
    peers = {peer.id: peer.address for peer in state.peers or () if peer.address}
    if none := [f"{one}: {address!r}" for one, address in peers.items() if not is_address(address)]:
        raise Failure(Exit.UNREACHABLE, f"{url} names no address of {none[0]}")
    if not peers or state.group is None:
        raise Failure(Exit.UNREACHABLE, f"{url} answers, but its engine does not: the members are not known")
    urls = {peer.id: peer.control_url for peer in state.peers or () if peer.control_url}
    known = state.group_id if is_group_id(state.group_id) else None
    itself = None if state.self_id in peers else state
    return Target(peers, state.group, token, urls, shown, checked, known, state.self_id, itself)


def control_state(
    url: str, group: str | None, token: str | None, tls: ssl.SSLContext | None = None, within_s: float = HTTP_TIMEOUT_S
) -> StateView:
    """The state that a control plane gives. Raises Failure."""
    try:
        asked = f"?{urlencode({'group': group})}" if group else ""
        return read(StateView, control_call("GET", url, f"state{asked}", token, tls=tls, within_s=within_s))
    except NotThere:
        if control_call("GET", url, "", token, tls=tls).get("kind") == "classic":
            raise ClassicBroker(url) from None
        raise
    except Unreadable as error:
        raise Failure(Exit.UNREACHABLE, f"{url}: its state cannot be read: {error}") from error


def control_call(
    method: str, url: str, resource: str, token: str | None, body: dict[str, Any] | None = None,
    *, tls: ssl.SSLContext | None = None, within_s: float = HTTP_TIMEOUT_S,
) -> dict[str, Any]:  # fmt: skip
    """One call of a control plane's API; a body makes it a change; `tls`: None for this machine's authorities.

    Raises Failure.
    """
    status, content = control_answer(method, url, resource, token, body, tls=tls, within_s=within_s)
    if status >= 400:
        reason = content.get("detail") or content.get("title")
        # It was reached, and said no: what was asked does not fit how things stand, or another group is asked for (400,
        # DLedger's UNKNOWN_GROUP). 404 without it: it is another kind of node.
        denied = content.get("code") == 400
        code = Exit.FINDING if status in (409, 410, 412, 421, 422) else Exit.UNREACHABLE
        kind = NotThere if status == 404 and not denied else Failure
        raise kind(Exit.DENIED if denied else code, f"{url} answered {status}: {reason}")
    return content


def control_answer(
    method: str, url: str, resource: str, token: str | None, body: dict[str, Any] | None = None,
    *, tls: ssl.SSLContext | None = None, within_s: float = HTTP_TIMEOUT_S,
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    """The same, but that a problem is an answer as well, unless the caller is not allowed to. Raises Failure."""
    import httpx2

    from app.commands.unanswered import bounded

    base = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/api/v1")
    try:  # resolvers refuse what is no host name with errors of all kinds
        parts = urlsplit(base)
        check_host(parts.hostname or "")
        if parts.scheme not in ("http", "https") or parts.port == 0:
            raise ValueError("that is not the address of a control plane, such as http://127.0.0.1:8431")
    except ValueError as error:
        raise Failure(Exit.USAGE, f"--node {url}: {error}") from error
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    headers |= {"authorization": f"Bearer {token}"} if token else {}
    address = f"{base}/api/v1/{resource}".rstrip("/")
    timeout = httpx2.Timeout(min(HTTP_TIMEOUT_S, within_s), read=within_s)
    try:
        with (
            AnswerTime(CONTROL_ANSWER_S + within_s) as time_left,
            httpx2.Client(timeout=timeout, trust_env=False, verify=tls or True) as client,
            client.stream(method, address, json=body, headers=headers, extensions={"trace": time_left.see}) as answer,
        ):
            status, raw = answer.status_code, bounded(base, answer.iter_raw(), CONTROL_ANSWER_BYTES_MAX)
    except httpx2.InvalidURL as error:
        raise Failure(Exit.USAGE, f"--node {url}: {error}") from error
    except (httpx2.HTTPError, TimeoutError) as error:
        may_be_done, text = without_answer(base, error, changes=method != "GET" and not (body or {}).get("dry_run"))
        raise Failure(Exit.UNKNOWN_OUTCOME if may_be_done else Exit.UNREACHABLE, text) from error
    content = None
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(raw)
    if not isinstance(content, dict):
        raise Failure(Exit.UNREACHABLE, f"{base} answered {status} without JSON: that is no control plane")
    if status in (401, 403):
        raise Failure(Exit.DENIED, f"{base} denies it: {content.get('detail') or content.get('title')}")
    return status, content


def run_async(work: Callable[[], Awaitable[T]]) -> T:
    """Runs a coroutine function; what the ledger's client raises becomes the exit code that it means."""

    async def awaited() -> T:
        return await work()

    try:
        return asyncio.run(awaited())
    except LedgerError as error:
        raise failure_of(error) from error


def failure_of(error: LedgerError) -> Failure:
    """The exit code for what the ledger's client raised."""
    if isinstance(error, Denied):
        hint = "; say which group with --group" if "UNKNOWN_GROUP" in str(error) else ""
        if "token_file" in str(error):
            hint = "; show it with --token-file FILE, or in $QUORUMSCOPE_TOKEN"
        return Failure(Exit.DENIED, f"denied: {error}{hint}")
    if isinstance(error, OutcomeUnknown):
        return Failure(Exit.UNKNOWN_OUTCOME, f"outcome unknown: {error}")
    if isinstance(error, Unreachable):
        return Failure(Exit.UNREACHABLE, f"unreachable: {error}")
    if isinstance(error, Refused):
        return Failure(Exit.FINDING, f"refused: {error}")
    if isinstance(error, NotAppended):
        return Failure(Exit.FINDING, f"not appended: {error}")
    return Failure(Exit.UNDETERMINED, str(error))
