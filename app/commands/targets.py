"""Which group a command speaks to: its options, and the members as they follow from them.

Invariant: what names no group, or several, ends the command before anything is asked of a member.
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.commands.access_flags import AccessFlags
from app.commands.control_calls import SILENT_AFTER_S, control_state
from app.commands.endings import ClassicBroker, Exit, Failure, Silence, Unheard
from app.commands.output import say
from app.commands.tls_options import CaOption, CertOption, KeyOption, TlsFilesError, TlsFlags
from node.client import LedgerClient
from node.config import ConfigError, Settings, load, read_token
from node.protocol.group_id import is_group_id
from node.protocol.peers import is_address
from node.views.state import StateView

if TYPE_CHECKING:
    from app.demo.state import DemoState

OTHERS: Final = "ask by another member's control plane (--node), or the members at their own ports (--peers)"
I32_MAX: Final = (1 << 31) - 1  # what the fields of requests hold: a larger number is a slip at the keyboard
I64_MAX: Final = (1 << 63) - 1
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
    has_brokers: bool = False  # by a demo's note, or the configuration; else its control planes say
    starts: Mapping[str, str] = field(default_factory=dict)  # what starts members again, where this machine knows it
    access: AccessFlags = field(default_factory=AccessFlags)  # what the commands that are printed need, too
    unanswered: str = ""  # of --node: why its control plane was not heard: the members are known from elsewhere
    given: str | None = None  # the control plane that was named, which names the others; None: this machine knows all

    def token_for(self, control_url: str) -> str | None:
        """What a member only names gets no token, unless TLS and an authority that was named prove who is there."""
        is_proven = control_url.startswith("https:") and self.control_tls is not None
        return self.token if self.given in (None, control_url) or is_proven else None

    def not_shown(self, control_url: str) -> str | None:
        """Why the token is not shown there; None: it is, or there is none."""
        if self.token == self.token_for(control_url):
            return None
        return f"only members name {control_url}: no token is shown there before --node names it, or --ca its authority"

    def client(self, deadline_s: float = 10.0, only: str | None = None) -> LedgerClient:
        """A client of the group, or of one member `only`; the caller closes it."""
        peers = dict(self.peers) if only is None else {only: self.peers[only]}
        return LedgerClient(
            peers, group=self.group, group_id=self.group_id, deadline_s=deadline_s, token=self.token, tls=self.tls
        )


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
    flags = (tls or TlsFlags()).over(settings)
    shown, checked = contexts_of(flags)
    access = AccessFlags(flags, token_file, token is not None, named_by(peers, node, group, config))
    configured = None
    if settings.peers:
        shared = token or token_of(settings.node.token_file)
        own = {} if config is None else {settings.node.id: shlex.join(["quorumscope", "node", "--config", str(config)])}
        configured = Target(
            settings.peers, settings.node.group, shared, tls=shown, control_tls=checked, starts=own,
            has_brokers=bool(settings.broker.address),
        )  # fmt: skip
    if node:
        return replace(_target_from_control(node, group, token, shown, checked, configured), access=access)
    if configured is not None:
        of_file = access if token is not None else replace(access, token_file=settings.node.token_file)
        return replace(configured, access=replace(of_file, has_token=configured.token is not None))
    demo = demo_meant("--node URL or --peers")
    if demo is not None:
        return Target(token=token, access=access, **demo.target)
    raise Failure(Exit.USAGE, "which group? give --peers n0-127.0.0.1:20911;n1-… or --node http://127.0.0.1:8431")


def named_by(peers: str | None, node: str | None, group: str | None, config: Path | None) -> tuple[str, ...]:
    """The options that were given, as they are given again."""
    given = {"--peers": peers, "--node": node, "--group": group, "--config": config and str(config)}
    return tuple(word for option, value in given.items() if value for word in (option, value))


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
    from app.demo.state import base_of, demo_of

    demo = demo_of(url)
    if demo is not None and group in (None, demo.group):
        configured = Target(token=token, asked=demo.member_at(url), **demo.target)
    try:
        state = control_state(url, group, token, checked, SILENT_AFTER_S / (1 if configured is None else 2))
    except Failure as failure:
        return asked_elsewhere(failure, configured)
    if configured is not None and configured.demo:
        return configured
    peers = {peer.id: peer.address for peer in state.peers or () if peer.address}
    if none := [f"{one}: {address!r}" for one, address in peers.items() if not is_address(address)]:
        raise Failure(Exit.UNREACHABLE, f"{url} names no address of {none[0]}")
    if not peers or state.group is None:
        why = f" ({state.engine_reason})" if state.engine_reason else ""
        text = f"{url} answers, but its engine does not{why}, and it does not know the members; {OTHERS}"
        raise Failure(Exit.UNREACHABLE, text)
    given = base_of(url)
    urls = {peer.id: peer.control_url for peer in state.peers or () if peer.control_url}
    urls |= {state.self_id: given} if state.self_id in peers else {}
    known = state.group_id if is_group_id(state.group_id) else None
    itself = None if state.self_id in peers else state
    return Target(peers, state.group, token, urls, shown, checked, known, state.self_id, itself, given=given)


def asked_elsewhere(failure: Failure, configured: Target | None) -> Target:
    """The members where this machine's settings, or a demo's note, name them. Raises Failure where nothing does."""
    if failure.code != Exit.UNREACHABLE:
        raise failure
    if configured is None:
        if not isinstance(failure, Unheard) or failure.silence is Silence.BROKEN:
            raise failure  # something answers there
        raise Failure(failure.code, f"{failure}; {OTHERS}") from failure
    say(f"{failure}; the members are asked at their own ports")
    return replace(configured, unanswered=str(failure))
