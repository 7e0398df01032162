"""`node` and `console`: the long-running programs.

Invariant: the command line is checked here, completely, before anything starts; a node is then *this* process
(`python -m node` by exec), so that a service manager's signals reach it directly.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.commands.endings import Exit, Failure
from app.commands.targets import ConfigOption, PeersOption
from node.children import environment, python
from node.config import NODE_FLAGS, SWITCHES, ConfigError, Settings, load, parse_set, read_token, split_address

SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Any other setting; repeatable.")
]
LogLevelOption = Annotated[
    str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info (the default), warning or error.")
]
LogFormatOption = Annotated[
    str | None, typer.Option("--log-format", metavar="FORMAT", help="console (the default) or json, on stderr.")
]
CONSOLE_FLAGS: Final = {
    "console.address": "--listen",
    "console.db_url": "--db",
    "console.nodes": "--node",
    "console.node_token_file": "--node-token-file",
    "console.node_ca_file": "--node-ca-file",
    "console.tls_cert_file": "--tls-cert",
    "console.tls_key_file": "--tls-key",
    "console.behind_proxy": "--behind-proxy",
    "console.allowed_hosts": "--allowed-host",
    "console.log_level": "--log-level",
    "console.log_format": "--log-format",
}


def node(
    member_id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Which of the peers this is.")] = None,
    group: Annotated[str | None, typer.Option(metavar="NAME", help="The group's name.")] = None,
    peers: PeersOption = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="The data directory.")] = None,
    control: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the control plane listens.")] = None,
    flush: Annotated[str | None, typer.Option(metavar="sync|async", help="When a write counts.")] = None,
    state_machine: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What the group's log drives: kv, or module:Class; none for a log alone."),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="The group is a RocketMQ broker's: where this member's listens."),
    ] = None,
    role: Annotated[
        str | None,
        typer.Option(metavar="ROLE", help="Classic master/slave mode: sync_master, async_master or slave; no engine."),
    ] = None,
    ha: Annotated[
        str | None, typer.Option("--ha", metavar="HOST:PORT", help="With --role: where it listens for slaves.")
    ] = None,
    ha_peers: Annotated[
        str | None,
        typer.Option("--ha-peers", metavar="HOST:PORT;…", help="With --role: where the other brokers listen."),
    ] = None,
    init: Annotated[bool, typer.Option("--init", help="This member belongs to a NEW group: make its store.")] = False,
    join: Annotated[
        bool, typer.Option("--join", help="This is a NEW member of a group that exists: make its store, and wait.")
    ] = False,
    group_token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN", help="With --init: tells this group from others of its name; same on all members."
        ),
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The secret that members prove to each other without TLS.")
    ] = None,
    make_secret: Annotated[
        bool, typer.Option("--make-secret", help="With --init: make the secret file, if there is none.")
    ] = False,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    exit_with_engine: Annotated[
        bool, typer.Option("--exit-with-engine", help="End when the engine ends (for service managers).")
    ] = False,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> int:
    """Run one member: engine and control plane."""
    given: dict[str, Any] = {
        "node.id": member_id,
        "node.group": group,
        "peers": peers,
        "node.data": data,
        "control.address": control,
        "node.flush": flush,
        "node.state_machine": state_machine,
        "broker.address": broker,
        "ha.role": role,
        "ha.address": ha,
        "ha.peers": ha_peers,
        "node.init": "true" if init else None,
        "node.join": "true" if join else None,
        "node.log_level": log_level,
        "node.log_format": log_format,
        "node.group_token": group_token,
        "node.secret_file": secret_file,
        "node.make_secret": "true" if make_secret else None,
    }
    try:
        overrides = {**given, **dict(parse_set(text) for text in settings or [])}
        load(overrides, config).check_node()
    except ConfigError as error:
        raise Failure(Exit.USAGE, str(error)) from error
    arguments = node_arguments(given, config, settings or [])
    if exit_with_engine:
        arguments.append("--exit-with-engine")
    # What comes while the supervisor's modules are imported waits: a Ctrl-C until it can end in order, a SIGHUP
    # (`systemctl reload`) until it is acted on instead of killing the node.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    os.execve(sys.executable, python("-m", "node", *arguments), environment())


def node_arguments(given: dict[str, Any], config: Path | None, settings: list[str]) -> list[str]:
    """The command line of `python -m node`: nothing but what was given, for a flag stands before what the file says,
    also when that is read again."""
    arguments: list[str] = []
    for flag, key in NODE_FLAGS.items():
        if flag in SWITCHES:
            arguments += [flag] if given[key] else []
        elif given[key] is not None:
            arguments += [flag, str(given[key])]
    for text in settings:
        arguments += ["--set", text]
    return arguments + (["--config", str(config)] if config else [])


def console(
    nodes: Annotated[
        list[str] | None, typer.Option("--node", metavar="URL", help="A control plane to watch; repeatable.")
    ] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Where the console listens.")] = None,
    db: Annotated[
        str | None, typer.Option(metavar="URL", help="Its database: a SQLite file, or postgresql://….")
    ] = None,
    node_token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The control planes' token.")] = None,
    node_ca_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The CA of the control planes.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="The console's certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="A proxy in front ends TLS.")] = False,
    allowed_hosts: Annotated[
        list[str] | None, typer.Option("--allowed-host", metavar="NAME", help="A name browsers use; repeatable.")
    ] = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> int:
    """Run the web console.

    Its first user comes in by the link that `quorumscope user link` prints.
    """
    given: dict[str, Any] = {
        "console.address": listen,
        "console.db_url": db,
        "console.nodes": nodes or None,
        "console.node_token_file": node_token_file,
        "console.node_ca_file": node_ca_file,
        "console.tls_cert_file": tls_cert,
        "console.tls_key_file": tls_key,
        "console.behind_proxy": "true" if behind_proxy else None,
        "console.allowed_hosts": allowed_hosts or None,
        "console.log_level": log_level,
        "console.log_format": log_format,
    }
    try:
        overrides = {**given, **dict(parse_set(text) for text in settings or [])}
        read = partial(load, overrides, config, flag_names=CONSOLE_FLAGS)
        loaded = read()
        token = read_token(loaded.console.node_token_file) if loaded.console.node_token_file else None
    except ConfigError as error:
        raise Failure(Exit.USAGE, str(error)) from error
    return _serve(loaded, read, token, os.environ.get("QUORUMSCOPE_DEMO_URL"))


def _serve(loaded: Settings, read: Callable[[], Settings], node_token: str | None, demo_control: str | None) -> int:
    gc.disable()  # as in node/control/__main__.py
    from app.console.server import serve
    from app.console.settings import ConsoleSettings, Seed, SettingsError

    gc.freeze()
    gc.enable()

    table = loaded.console
    host, port = split_address(table.address)
    settings = ConsoleSettings(
        db_url=table.db_url,
        host=host,
        port=port,
        seeds=tuple(Seed(url) for url in table.nodes),
        node_token=node_token,
        node_token_file=table.node_token_file,
        node_ca_file=table.node_ca_file,
        tls_cert_file=table.tls_cert_file,
        tls_key_file=table.tls_key_file,
        behind_proxy=table.behind_proxy,
        allowed_hosts=table.allowed_hosts,
        sample_interval_ms=table.sample_interval_ms,
        session_idle_s=table.session_idle_s,
        session_max_s=table.session_max_s,
        history_days=table.history_days,
        trail_days=table.trail_days,
        operations_days=table.operations_days,
        second_factor=table.second_factor,
        oidc=loaded.oidc,
        log_level=table.log_level,
        log_format=table.log_format,
        demo=demo_control is not None,
        demo_control_url=demo_control,
    )
    try:
        settings.check()
    except SettingsError as error:
        raise Failure(Exit.USAGE, str(error)) from error
    return serve(settings, loaded, read)


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.command()(node)
    app.command()(console)
