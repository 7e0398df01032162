"""`audit`: compares what the replicas hold. The work is done in app.audit; this is its command line."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption
from app.commands.targets import I64_MAX, ConfigOption, GroupOption, TokenFileOption, settings_of, token_of


class Depth(StrEnum):
    """How much an audit reads; only `bytes` trusts no node's word."""

    CHAIN = "chain"
    DIGEST = "digest"
    BYTES = "bytes"


def audit(
    nodes: Annotated[
        list[str] | None, typer.Option("--node", metavar="URL", help="A replica's control plane; repeatable.")
    ] = None,
    stores: Annotated[
        list[str] | None, typer.Option("--store", metavar="[ID=]DIR", help="A replica's store; repeatable.")
    ] = None,
    cluster: Annotated[str | None, typer.Option(metavar="NAME", help="A cluster that a console knows.")] = None,
    console: Annotated[str | None, typer.Option(metavar="URL", help="That console.")] = None,
    depth: Annotated[Depth | None, typer.Option(help="How much is read; bytes by default.")] = None,
    from_index: Annotated[
        int | None, typer.Option("--from", metavar="N", min=0, max=I64_MAX, help="Not below this index.")
    ] = None,
    to_index: Annotated[
        int | None, typer.Option("--to", metavar="N", min=0, max=I64_MAX, help="Not above this index.")
    ] = None,
    master: Annotated[str | None, typer.Option(metavar="URL", help="The Spark master; local[*] by default.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write findings there as Parquet.")] = None,
    ca_file: Annotated[Path | None, typer.Option("--ca", "--ca-file", metavar="FILE", help="Their CA (PEM).")] = None,
    messages: Annotated[
        bool, typer.Option("--messages", help="RocketMQ stores: commit log, consume queues and index, with --store.")
    ] = False,
    ha: Annotated[
        bool,
        typer.Option(
            "--ha", help="A classic pair's commit logs: of running brokers, or the first --store is the master's."
        ),
    ] = False,
    group: GroupOption = None,
    token_file: TokenFileOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compare what the replicas really hold."""
    if not nodes and not stores and cluster is None:
        raise Failure(
            Exit.USAGE, "audit what? give --node URL and --store [ID=]DIR (each repeatable), or --cluster NAME"
        )
    for one in stores or ():
        if one.endswith("=") and not Path(one).exists():
            raise Failure(Exit.USAGE, f"--store {one}: it names no directory")
    if cluster is not None and (nodes or stores):
        raise Failure(Exit.USAGE, "give --cluster, or --node and --store, not both")
    if from_index is not None and to_index is not None and from_index > to_index:
        raise Failure(Exit.USAGE, f"--from {from_index} is above --to {to_index}")
    if messages and (nodes or cluster or not stores):
        raise Failure(Exit.USAGE, "--messages reads the files of message stores: name them with --store [ID=]DIR")
    if messages and (depth is not None or from_index is not None or to_index is not None):
        raise Failure(Exit.USAGE, "--messages reads everything: it goes without --depth, --from and --to")
    if ha and messages:
        raise Failure(Exit.USAGE, "--ha compares commit logs, --messages reads queues and index: one of them")
    if ha and cluster is None and len(nodes or ()) + len(stores or ()) < 2:
        text = "--node URL of each broker, or --store of the master first, then --store of each slave"
        raise Failure(Exit.USAGE, f"--ha compares the logs of two brokers or more: {text}")
    if ha and (depth is not None or from_index is not None or to_index is not None):
        raise Failure(Exit.USAGE, "--ha reads everything: it goes without --depth, --from and --to")
    from app.audit.command import AuditArgs, run

    table = settings_of({"audit.master": master, "audit.depth": depth}, config).audit
    code: int = run(
        AuditArgs(
            nodes=tuple(nodes or ()),
            stores=tuple(stores or ()),
            cluster=cluster,
            depth=table.depth,
            from_index=from_index,
            to_index=to_index,
            master=table.master,
            out=None if out is None else str(out),
            as_json=as_json,
            token=token_of(token_file),
            ca_file=None if ca_file is None else str(ca_file),
            console_url=console,
            group=group,
            messages=messages,
            ha=ha,
        )
    )
    return code


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(audit)
