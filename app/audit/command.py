"""`quorumscope audit`: starts the job in a process of its own, shows its progress on stderr, prints its result.

Exit codes: 0 consistent, 1 divergent, 2 unauditable or not finished, 64 usage, 69 unreachable, 77 denied, 130
interrupted. Invariant: stdout carries the result and nothing else; Spark is never imported here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.audit.fencing import store_directory
from app.audit.launch import Lines, last_words, request_cancel, start_job, write_spec
from app.audit.message_render import render_messages
from app.audit.pair_render import render_pair
from app.audit.replicas import ControlError, ControlPlane, ReplicaSpec
from app.audit.result import DEPTHS, EXIT_CODES
from app.audit.segments import ReadFailed
from app.why_unreached import authority_hint
from node.children import how_ended
from node.printable import escaped

DEFAULT_CONSOLE_URL = "http://127.0.0.1:8421"
USAGE, UNREACHABLE, UNDETERMINED, DENIED, INTERRUPTED = 64, 69, 2, 77, 130
FAILURE_CODES: Final = {"usage": USAGE, "unreachable": UNREACHABLE}
STEP_TEXT: Final = {
    "starting_jvm": "starting the JVM",
    "fencing": "fixing the fence",
    "reading": "reading and comparing",
    "comparing": "comparing",
}


@dataclass(frozen=True)
class AuditArgs:
    """What the command line was given."""

    nodes: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    cluster: str | None = None
    depth: str = "bytes"
    from_index: int | None = None
    to_index: int | None = None
    master: str | None = None
    out: str | None = None
    as_json: bool = False
    token: str | None = None
    ca_file: str | None = None
    console_url: str | None = None
    group: str | None = None
    messages: bool = False
    ha: bool = False


class CommandError(Exception):
    """Ends the command: one line on stderr and an exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def run(args: AuditArgs) -> int:
    """Blocking; handles Ctrl-C itself. SIGTERM and a terminal that closes end it as a Ctrl-C does: its job (a JVM, and
    workers that read all replicas) would go on for nobody, and the spec, which may hold a token, would stay."""
    directory = Path(tempfile.mkdtemp(prefix="quorumscope-audit-"))
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if not callable(signal.getsignal(number))  # the way in makes a Ctrl-C of SIGTERM, and 143 of its end
    }
    try:
        specs = replica_specs(args)
        check_paths(args, specs)
        write_spec(
            directory, specs, depth=args.depth, from_index=args.from_index, to_index=args.to_index,
            master=args.master, out=str(Path(args.out).resolve()) if args.out else None, messages=args.messages,
            ha=args.ha,
        )  # fmt: skip
        return _follow(directory, start_job(directory, outlives=False), args)
    except CommandError as error:
        print(escaped(f"quorumscope audit: {error}{authority_hint(str(error))}"), file=sys.stderr)
        return error.code
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def replica_specs(args: AuditArgs) -> list[ReplicaSpec]:
    """Who is audited. Raises CommandError on wrong usage and on a cluster that the console does not know."""
    if args.depth not in DEPTHS:
        raise CommandError(USAGE, f"--depth is {', '.join(DEPTHS)}; not {args.depth!r}")
    if args.from_index is not None and args.to_index is not None and args.from_index > args.to_index:
        raise CommandError(USAGE, f"--from {args.from_index} lies behind --to {args.to_index}")
    if args.cluster is not None and (args.nodes or args.stores):
        raise CommandError(USAGE, "--cluster names all replicas; give either it or --node and --store")
    token = args.token or os.environ.get("QUORUMSCOPE_TOKEN", "").strip() or None
    if token is not None and not (token.isascii() and token.isprintable()):
        raise CommandError(USAGE, "the token holds characters that no token has: is all of it the token?")
    nodes = [ReplicaSpec("http", url, None, token, args.ca_file, args.group) for url in args.nodes]
    stores = [store_spec(text) for text in args.stores]
    if args.cluster is not None:
        nodes = cluster_specs(args, token)
    if not nodes and not stores:
        raise CommandError(USAGE, "name the replicas: --node URL, --store [ID=]DIR, or --cluster NAME")
    for spec in nodes:
        if not spec.location.startswith(("http://", "https://")):
            raise CommandError(USAGE, f"--node takes the URL of a control plane, not {spec.location!r}")
    return [*nodes, *stores]


def check_paths(args: AuditArgs, specs: list[ReplicaSpec]) -> None:
    """What can be seen without Java, which takes seconds to start. Raises CommandError."""
    named: set[str | None] = set()
    for spec in (one for one in specs if one.kind == "directory"):
        path = Path(spec.location)
        if not path.is_dir():
            what = "it is no directory" if path.exists() else "there is no such directory"
            raise CommandError(USAGE, f"--store {path}: {what}")
        for twice in {spec.location, spec.id} & named:
            raise CommandError(USAGE, f"--store {twice} is named twice")
        named |= {spec.location, spec.id} - {None}
    for number, spec in enumerate(nodes := [one for one in specs if one.kind == "http"]):
        if any(spec.location.rstrip("/") == one.location.rstrip("/") != "" for one in nodes[:number]):
            raise CommandError(USAGE, f"--node {spec.public} is named twice")
    if args.out is not None and Path(args.out).exists() and not Path(args.out).is_dir():
        raise CommandError(USAGE, f"--out {args.out}: it is no directory")
    if args.ca_file is not None and not Path(args.ca_file).is_file():
        raise CommandError(USAGE, f"--ca {args.ca_file}: there is no such file")
    if args.messages or args.ha or any(one.kind == "http" for one in specs):
        return
    problems = [problem for one in specs if (problem := no_store(Path(one.location))) is not None]
    if len(problems) == len(specs):  # else: the others are read, and what is wrong with it is in the result
        raise CommandError(USAGE, "; ".join(problems))


def no_store(path: Path) -> str | None:
    """Why a directory cannot be read as a member's store; None where it can."""
    try:
        store_directory(path)
    except ReadFailed as error:
        return str(error)
    return None


def store_spec(text: str) -> ReplicaSpec:
    """`[ID=]DIR`; an `=` belongs to the directory where what is before it looks like a path."""
    name, equals, path = text.partition("=")
    if equals and name and "/" not in name:
        return ReplicaSpec("directory", str(Path(path).expanduser().resolve()), name)
    return ReplicaSpec("directory", str(Path(text).expanduser().resolve()))


def cluster_specs(args: AuditArgs, token: str | None) -> list[ReplicaSpec]:
    """The members' control planes, as the console knows them. Raises CommandError."""
    url = args.console_url or DEFAULT_CONSOLE_URL
    console = ControlPlane(ReplicaSpec("http", url, token=token, ca_file=args.ca_file))
    try:
        listed = console.get_json("/clusters")["items"]
        found = [one for one in listed if args.cluster in (one["name"], one["id"])]
        if not found:
            known = ", ".join(sorted(one["name"] for one in listed)) or "none"
            raise CommandError(USAGE, f"the console knows no cluster {args.cluster!r} (it knows: {known})")
        if len(found) > 1:
            ids = ", ".join(one["id"] for one in found)
            raise CommandError(USAGE, f"{len(found)} clusters are called {args.cluster!r}; name one by its id: {ids}")
        members = found[0]["members"]
    except ControlError as error:
        code = DENIED if error.status in (401, 403) else UNDETERMINED
        raise CommandError(code, f"{error}") from None
    except ReadFailed as error:
        raise CommandError(UNREACHABLE, f"the console: {error}") from None
    finally:
        console.close()
    # The token is the console's; it must not travel on to the nodes. Nodes that ask for one are named with --node.
    return [ReplicaSpec("http", m["control_url"] or "", m["id"], None, args.ca_file, args.group) for m in members]


def _follow(directory: Path, job: subprocess.Popen[bytes], args: AuditArgs) -> int:
    lines = Lines(directory)
    screen = Screen()
    try:
        while True:
            ended = job.poll() is not None
            for event in lines.read():
                if event["event"] == "progress":
                    screen.show(event)
                    continue
                screen.clear()
                job.wait()
                return _finish(event, args)
            if ended:
                text = f"the audit's process {how_ended(job.returncode)}, without a result: {last_words(directory)}"
                raise CommandError(UNDETERMINED, text)
            time.sleep(0.1)
    except KeyboardInterrupt:
        screen.clear()
        request_cancel(directory)
        try:
            job.wait(timeout=3)
        except subprocess.TimeoutExpired:
            job.kill()
        return INTERRUPTED  # which the way in says


def _finish(event: dict[str, Any], args: AuditArgs) -> int:
    if event["event"] == "cancelled":
        raise CommandError(INTERRUPTED, "cancelled")
    if event["event"] == "failed":
        raise CommandError(FAILURE_CODES.get(event["code"], UNDETERMINED), event["detail"])
    result: dict[str, Any] = event["result"]
    if args.as_json:
        print(json.dumps(result))
    else:  # what members say of themselves is in it, and what senders wrote
        shown = render_messages if args.messages else render_pair if args.ha else render
        text = shown(result)
        print(text)
    return EXIT_CODES[result["verdict"]]


class Screen:
    """Progress on stderr: one line that is rewritten on a terminal, one line per step elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._last_said: str | None = None

    def show(self, event: dict[str, Any]) -> None:
        step = event["step"]
        if step is None:
            return
        text = escaped(event["waits_for"] or STEP_TEXT[step])
        if event["blocks_total"]:
            text += (
                f": {event['blocks_done']:,} of {event['blocks_total']:,} blocks, {event['bytes_done'] / 1e6:,.0f} MB"
            )
            if event["eta_s"] is not None:
                text += f", {event['eta_s']:.0f} s left"
        if self._live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif (said := escaped(event["waits_for"] or STEP_TEXT[step])) != self._last_said:
            print(f"audit: {said}", file=sys.stderr, flush=True)
            self._last_said = said

    def clear(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def render(result: dict[str, Any]) -> str:
    """The result for people: the sentence, what it proves, what it does not, then the findings."""
    out = [
        result["summary"],
        "",
        f"verdict  {result['verdict']} (depth {result['depth']})",
        f"proves   {result['proves']}",
    ]
    for replica in result["replicas"]:
        if replica["problem"]:
            out.append(f"{replica['id']:8} not read: {replica['problem']}")
            continue
        committed = replica["committed_index"]
        up_to = "unknown" if committed is None else f"{committed:,}"
        out.append(f"{replica['id']:8} {replica['begin_index']:,} to {replica['end_index']:,}, committed {up_to}")
    for gap in result["unaudited"]:
        out.append(f"NOT AUDITED  {gap['replica']} {gap['from_index']:,} to {gap['to_index']:,}: {gap['reason']}")
    for lone in result["single_copy_ranges"]:
        out.append(f"single copy  {lone['from_index']:,} to {lone['to_index']:,} only on {lone['replica']}")
    out.extend(f"{row['severity']:8} {row['class']:22} {row['detail']}" for row in result["findings"])
    if result["findings_truncated"]:
        out.append(f"... {result['findings_total'] - len(result['findings']):,} more findings")
    out.append(f"{result['rows']:,} records read in {result['seconds']:.1f} s")
    return "\n".join(map(escaped, out))
