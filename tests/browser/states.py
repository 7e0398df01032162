"""The demo's states and all pages, for what looks at every page in every state: the matrix of tests, the pictures.

A state changes a fresh fake group as the demo's break changes a real one; the finding of the flipped bit is stored as
an audit that ended.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from playwright.sync_api import Page
from starlette.requests import Request
from starlette.responses import Response

from app.api import alerts
from app.audit.entries import HeldEntry
from app.console.audit_pages import ended
from app.console.repairs import STEPS as REPAIR_STEPS
from app.db.models import AlertWindow
from app.notify.outbox import Health, Message
from app.notify.routes import NewRoute
from app.times import rfc3339, utc_now
from tests.browser.kit import Console
from tests.browser.message_states import PAGES as MESSAGE_PAGES
from tests.unit.fake_control import FakeGroup

Json = dict[str, Any]
GROUP: Final = "/clusters/demo"
WIDTHS: Final = (360, 768, 1280, 1920)
SCHEMES: Final = ("light", "dark")
WRONG_INDEX: Final = 77_084


def healthy(group: FakeGroup) -> None:
    group.committed = 1_204_993
    for lag, node in enumerate(group.nodes.values()):
        node.end = node.durable = 1_204_993 - lag
        node.lag_ms = 4


def killed(group: FakeGroup) -> None:
    healthy(group)
    lost = group.nodes["n2"]
    lost.alive, lost.ack_ms, lost.dispatcher = False, 31_000, "COMPARE"


def cut_off(group: FakeGroup) -> None:
    """n2 answers the console and hears nobody; it stands for election again and again."""
    healthy(group)
    lost = group.nodes["n2"]
    lost.role, lost.end, lost.ack_ms, lost.dispatcher, lost.lag_ms = "CANDIDATE", 1_156_893, 41_000, "COMPARE", 41_000
    lost.durable = lost.end
    group.nodes["n0"].heard_ms = group.nodes["n1"].heard_ms = {"n2": 41_000}
    lost.heard_ms = {"n0": 41_000, "n1": 41_000}
    group.closures = {
        "pending": 118, "limit": 10_000, "oldest_age_ms": 640,
        "groups": [{"waits_for": ["n1", "n2"], "needed": 1, "count": 118, "first_index": 1_204_876,
                    "last_index": 1_204_993, "oldest_age_ms": 640, "bytes": 33_440, "times_out_in_ms": 1360}],
        "items": [{"first_index": 1_204_876 + n, "last_index": 1_204_876 + n, "term": 4, "age_ms": 640 - n,
                   "waits_for": ["n1", "n2"]} for n in range(20)],
    }  # fmt: skip


def paused(group: FakeGroup) -> None:
    """A stopped process keeps its port and answers nothing; the leader's acknowledgements from it grow old."""
    healthy(group)
    held = group.nodes["n1"]
    held.alive, held.ack_ms, held.resends, held.end = False, 12_000, 14, 1_204_100
    held.dispatcher = "COMPARE"


def slow(group: FakeGroup) -> None:
    """What n2 sends and is sent takes a quarter of a second; writes get their quorum without it."""
    healthy(group)
    late = group.nodes["n2"]
    late.rtt_ms, late.ack_ms, late.lag_ms, late.end = 251.4, 130, 240, 1_204_946
    late.durable = late.end


def flipped(group: FakeGroup) -> None:
    healthy(group)
    group.nodes["n1"].faults = [
        {"first_index": WRONG_INDEX, "last_index": WRONG_INDEX, "kind": "crc_invalid",
         "detail": "the stored CRC does not fit the record"},
    ]  # fmt: skip


def disk_full(group: FakeGroup) -> None:
    """n1 stores nothing new, and says so; its leader says it of it, too."""
    healthy(group)
    since = rfc3339(utc_now() - timedelta(seconds=24))
    full = {"code": "disk_full", "severity": "critical", "since": since, "text": "the disk of n1 is full"}
    group.nodes["n1"].alarms = [full]
    group.nodes["n0"].alarms = [full | {"code": "peer_disk_full", "peer_id": "n1"}]
    group.nodes["n1"].end -= 2_400
    group.nodes["n1"].durable, group.nodes["n1"].lag_ms = group.nodes["n1"].end, 24_000


def out_of_sight(group: FakeGroup) -> None:
    """The console's own way to n2 is cut; the group is well, and its leader hears n2."""
    healthy(group)
    group.nodes["n2"].alive = False


def all_down(group: FakeGroup) -> None:
    healthy(group)
    for node in group.nodes.values():
        node.alive = False


STATES: Final[dict[str, Callable[[FakeGroup], None]]] = {
    "healthy": healthy, "killed": killed, "cut-off": cut_off, "paused": paused, "slow": slow,
    "flipped": flipped, "all-down": all_down, "disk-full": disk_full, "out-of-sight": out_of_sight,
}  # fmt: skip


def put_in_state(group: FakeGroup, state: str) -> None:
    """The group as it is when fresh, and then broken."""
    fresh = FakeGroup(size=len(group.nodes))
    group.term, group.committed, group.closures = fresh.term, fresh.committed, fresh.closures
    for node in group.nodes.values():
        for name, value in vars(fresh.nodes[node.id]).items():
            if name not in ("group", "id", "url"):
                setattr(node, name, value)
    STATES[state](group)


# --- what is kept ---------------------------------------------------------------------------------------------------


def result_of(verdict: str) -> Json:
    whole = {"from_index": 0, "to_index": 1_204_993, "committed_index": 1_204_993}
    finding = {
        "class": "crc_invalid", "severity": "critical", "from_index": WRONG_INDEX, "to_index": WRONG_INDEX,
        "replicas": ["n1"], "detail": f"{WRONG_INDEX:,} on n1: the body differs from its stored CRC",
    }  # fmt: skip
    return {
        "verdict": verdict, "depth": "bytes", "fence": whole, "rows": 3_614_982, "seconds": 41.2,
        "proves": "Every byte of every entry in the range was read from each replica that holds it, and compared;"
        " index files were checked against the records. It trusts no node's word.",
        "replicas": [{"id": f"n{n}", "source": f"http://127.0.0.1:{8431 + n}", "kind": "http", "begin_index": 0,
                      "end_index": 1_204_993, "committed_index": 1_204_993, "problem": None} for n in range(3)],
        "unaudited": [], "single_copy_ranges": [{"from_index": 1_204_990, "to_index": 1_204_993, "replica": "n0"}],
        "findings": [finding] if verdict == "divergent" else [],
        "findings_truncated": False, "findings_total": 1, "first_divergence": WRONG_INDEX,
        "summary": f"The replicas diverge: {finding['detail']}." if verdict == "divergent"
        else "All 3 replicas hold the same 1,204,994 entries.",
    }  # fmt: skip


def add_audit(console: Console, verdict: str) -> str:
    """An audit that ended, as its page finds it; returns its id."""

    async def made() -> str:
        kept = console.app.state.audit_runner.kept
        row, _ = await kept.create(
            cluster_id="demo", cluster_name="demo", depth="bytes", from_index=None, to_index=None,
            directory="/nowhere", requested_by="ann",
        )  # fmt: skip
        await kept.running(row.id, 1)
        await kept.finish(row.id, {"event": "result", "result": result_of(verdict)})
        ended(console.app.state.console, await console.app.state.audit_runner.get(row.id))
        return str(row.id)

    return on_loop(console, made)


def add_transfer(console: Console) -> str:
    """A transfer that is done; returns its id."""

    async def made() -> str:
        kept = console.app.state.console.operations_kept
        progress = {"detail": "from n0 to n1", "node_operation_id": str(uuid.uuid4())}
        operation, _ = await kept.open("demo", "leadership_transfer", "ann", node_id="n0", key=None, progress=progress)
        await kept.set(operation["id"], state="done", outcome={"leader_id": "n1", "term": 5, "detail": "n1 leads"})
        return str(operation["id"])

    return on_loop(console, made)


def add_notifications(console: Console) -> None:
    """A route that fails and one that delivered, a window, a message of each kind; a problem of the console itself."""

    async def made() -> str:
        state = console.app.state
        notifier, since = state.notifier, utc_now() - timedelta(minutes=7)
        for name, target in (
            ("ops", {"webhook": {"url": "https://hooks.ops.example/services/T0BMRA9RN/B0BN4ZVLK/quorumscope"}}),
            ("on-call-mail", {"mail": {"host": "smtp.ops.example", "sender": "quorumscope@ops.example",
                                       "recipients": ["on-call@ops.example", "night-shift@ops.example"]}}),
        ):  # fmt: skip
            body = NewRoute.model_validate({"name": name, "hold_s": 86_400, "enabled": name == "ops", **target})
            await alerts.add_route(Request({"type": "http"}), body, notifier, Response())
        failing = next(row.id for row in notifier.routes.values() if row.name == "ops")
        notifier.outbox.health[failing] = Health(None, since, 3, "cannot be reached: All connection attempts failed")
        notifier.windows.append(
            AlertWindow(id=1, scope="demo", begin=since, until=since + timedelta(hours=4), reason="new disks", by="ann")
        )
        for kind, outcome in (("opened", "delivered"), ("over", "given_up"), ("reminder", "pending")):
            text = f"demo: {kind}: n2 is cut off from n0 and n1 since 14:03:07, and still answers this console."
            payload = {"id": str(uuid.uuid4()), "kind": kind, "thread": "t", "text": text}
            one = Message(0, "ops", payload, since, outcome, 3, since, "cannot be reached: All attempts failed")
            notifier.outbox.messages[one.id] = one
        return ""

    on_loop(console, made)


def add_repair(console: Console) -> str:
    """A scrub and repair that is under way; returns its id."""

    async def made() -> str:
        kept = console.app.state.console.operations_kept
        steps = [
            {"text": text, "state": state}
            for text, state in zip(REPAIR_STEPS.values(), ("done", "now", ""), strict=True)
        ]
        progress = {"steps": steps, "detail": f"entry {WRONG_INDEX:,} from n2"}
        operation, _ = await kept.open("demo", "scrub_and_repair", "ann", node_id="n1", key=None, progress=progress)
        return str(operation["id"])

    return on_loop(console, made)


def add_running_audit(console: Console) -> str:
    """An audit that reads; returns its id."""

    async def made() -> str:
        kept = console.app.state.audit_runner.kept
        row, _ = await kept.create(
            cluster_id="demo", cluster_name="demo", depth="digest", from_index=0, to_index=1_204_993,
            directory="/nowhere", requested_by="ann",
        )  # fmt: skip
        await kept.running(row.id, 1)
        progress = {
            "event": "progress", "step": "reading", "blocks_done": 1_240, "blocks_total": 3_600,
            "bytes_done": 123_456_789, "bytes_total": 361_498_200, "eta_s": 21,
        }  # fmt: skip
        await kept.note_progress(row.id, progress)
        runner = console.app.state.audit_runner
        runner.live[row.id] = await runner.get(row.id)
        return str(row.id)

    return on_loop(console, made)


def prepared(console: Console) -> dict[str, str]:
    """Everything that pages are about is there; name -> path of every page."""
    add_notifications(console)
    paths = pages_of(add_audit(console, "divergent"), add_transfer(console))
    return paths | {
        "audit-running": f"{GROUP}/audits/{add_running_audit(console)}", "repair": f"{GROUP}/nodes/n1/repair",
        "restart": f"{GROUP}/nodes/n1/restart", "restart-machine": f"{GROUP}/nodes/n1/restart?what=state_machine",
        "repairing": f"/operations/{add_repair(console)}", "addresses": f"{GROUP}/addresses",
    }  # fmt: skip


def on_loop(console: Console, work: Callable[[], Any]) -> str:
    return str(asyncio.run_coroutine_threadsafe(work(), console.loop).result(20))


def held_entries(*_: Any) -> list[HeldEntry]:
    """What `entry_on_all` finds of the flipped bit, without a disk to read."""
    sound = bytes(range(48, 112)) * 3
    wrong = sound[:50] + bytes([sound[50] ^ 4]) + sound[51:]
    fields = {"magic": 1, "size": len(sound), "index": WRONG_INDEX, "term": 4, "pos": 23_279_368, "channel": 0,
              "chain_crc": 0x1A2B3C4D, "body_crc": 0x5E6F7081, "body_len": len(sound) - 48}  # fmt: skip
    return [
        HeldEntry(name, raw, fields, 23_279_368, facts, None)
        for name, raw, facts in (
            ("n0", sound, ()),
            ("n1", wrong, ("crc_invalid: the stored CRC does not fit the record",)),
            ("n2", sound, ()),
        )
    ]


def pages_of(audit_id: str, operation_id: str) -> dict[str, str]:
    """Name -> path of every page."""
    return {
        "clusters": "/", "group": GROUP, "group-bytes": f"{GROUP}?unit=bytes", "group-seconds": f"{GROUP}?unit=seconds",
        "node": f"{GROUP}/nodes/n1", "members": f"{GROUP}/members",
        "member-new": f"{GROUP}/members/change?kind=add&id=n3&address=10.20.30.40:20911",
        "leadership": f"{GROUP}/leadership", "log": f"{GROUP}/log",
        "truncations": f"{GROUP}/truncations", "events": f"{GROUP}/events", "audits": f"{GROUP}/audits",
        "audit": f"{GROUP}/audits/{audit_id}", "entry": f"{GROUP}/entries/{WRONG_INDEX}/replicas",
        "operation": f"/operations/{operation_id}", "all-audits": "/audits", "account": "/account", "users": "/users",
        "second-factor": "/account/second-factor", "trail": "/admin-trail", "addresses": f"{GROUP}/addresses",
        "new": "/clusters/new", "missing": f"{GROUP}/nodes/n9",
        "notifications": "/notifications", "route-new": "/notifications/new",
        "alert": "/notifications/problems/_console/route_not_delivering%3Aops", **MESSAGE_PAGES,
    }  # fmt: skip


# --- looking at it --------------------------------------------------------------------------------------------------

FLAWS: Final = """() => {
  const flaws = [];
  const name = (one) => `${one.localName}.${[...one.classList].join('.')} "${one.textContent.trim().slice(0, 60)}"`;
  const over = document.documentElement.scrollWidth - innerWidth;
  if (over > 0) flaws.push(`the page is ${over} px too wide`);
  const unseen = '.visually-hidden, .skip, [hidden], svg, .u-legend .edge, canvas, pre';
  for (const one of document.querySelectorAll('body *')) {
    if (one.closest(unseen) || !one.checkVisibility()) continue;
    const head = one.closest('.cards thead');
    if (head && getComputedStyle(head).position === 'absolute') continue;
    const text = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const style = getComputedStyle(one);
    const box = one.getBoundingClientRect();
    const block = !style.display.startsWith('inline') || style.display === 'inline-block';
    if (one.matches('.scroll') && one.scrollWidth > one.clientWidth + 1) flaws.push(`a column hides in ${name(one)}`);
    if (text && block && one.clientWidth && one.scrollWidth > one.clientWidth + 1) flaws.push(`clipped: ${name(one)}`);
    if (text && box.width && (box.left < -1 || box.right > innerWidth + 1)) flaws.push(`off the screen: ${name(one)}`);
  }
  for (const svg of document.querySelectorAll('.lane-axis, .states')) {
    const words = [...svg.querySelectorAll('text')].filter((one) => one.checkVisibility());
    const boxes = words.map((one) => [one.textContent, one.getBoundingClientRect()]);
    const within = svg.closest('th, article, section').getBoundingClientRect();
    boxes.forEach(([text, a], n) => {
      if (a.left < within.left - 14 || a.right > within.right + 2) flaws.push(`a label leaves its picture: ${text}`);
      for (const [other, b] of boxes.slice(n + 1)) {
        if (a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 2 && b.top < a.bottom - 2) {
          flaws.push(`labels collide: ${text} and ${other}`);
        }
      }
    });
  }
  return flaws;
}"""


def flaws(page: Page) -> list[str]:
    """What cannot be read on the page as it stands: too wide, clipped, hidden, off the screen, labels that collide."""
    found: list[str] = page.evaluate(FLAWS)
    return found
