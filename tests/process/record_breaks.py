"""Records what Prometheus would have scraped while a real demo was really broken: the material of the rules' test.

    python -m tests.process.record_breaks tests/unit/prometheus_series.json
    python -m tests.process.record_breaks tests/unit/prometheus_series.json SMALL_DISK

Takes about a quarter of an hour. The second adds what only a disk of its own can show: SMALL_DISK is a directory on a
small file system, such as a tmpfs of 600 MB, which is filled. What was recorded of other breaks stays. Each break is a
timeline of its own that begins in quiet; between two of them the demo is waited for until all is well again. Kept are
the families that the rules name, by target; None is a failed scrape.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx2

from app.demo.processes import engine_of
from app.demo.state import DemoState, running_demos

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "docs/deploy/prometheus/quorumscope.rules.yml"
INTERVAL_S: Final = 5
QUIET_SCRAPES, BROKEN_SCRAPES = 4, 14
LEFT_SHARE: Final = 0.12
NO_FILE_SHARE: Final = 0.04  # left: too little for another data file of the log
BODY_BYTES, BODIES_MAX = 1_000_000, 500
LINE: Final = re.compile(r"^([a-z_]+)(\{[^}]*\})? (\S+)$")
Scrape = dict[str, float] | None


class Recorder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.demo = subprocess.Popen(
            [sys.executable, "-m", "app.cli", "demo", "--data", str(folder), "--max-mb", "2000"],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.state = self.found()
        self.db = self.folder / "console.db"
        self.cli("user", "link", "prometheus", "--role", "viewer", "--db", str(self.db))
        self.token = self.cli("token", "issue", "prometheus", "--role", "viewer", "--db", str(self.db)).split()[-1]
        self.families = set(re.findall(r"\bquorumscope_[a-z_]+\b", RULES.read_text()))
        self.targets = {f"node/{one.id}": one.control_url for one in self.state.members}
        assert self.state.console_url is not None
        self.targets["console/console"] = self.state.console_url

    def found(self) -> DemoState:
        while True:
            for one in running_demos():
                if one.pid == self.demo.pid:
                    return one
            time.sleep(0.2)

    def cli(self, *words: str) -> str:
        done = subprocess.run([sys.executable, "-m", "app.cli", *words], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            print(f"{words}: {done.returncode} {done.stderr}", file=sys.stderr)
        return done.stdout

    def scrape(self, url: str) -> Scrape:
        try:
            answer = httpx2.get(
                f"{url}/metrics", headers={"authorization": f"Bearer {self.token}"}, timeout=4, trust_env=False
            )
        except httpx2.HTTPError:
            return None
        if answer.status_code != 200:
            return None
        lines = (LINE.match(line) for line in answer.text.splitlines())
        return {one[1] + (one[2] or ""): float(one[3]) for one in lines if one and one[1] in self.families}

    def timeline(self, breaking: Callable[[int], None]) -> dict[str, list[Scrape]]:
        """`breaking(n)` is called before the nth scrape behind the quiet ones."""
        kept: dict[str, list[Scrape]] = {name: [] for name in self.targets}
        begun = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            for number in range(QUIET_SCRAPES + BROKEN_SCRAPES):
                time.sleep(max(0.0, begun + number * INTERVAL_S - time.monotonic()))
                if number >= QUIET_SCRAPES:
                    breaking(number - QUIET_SCRAPES)
                for name, one in zip(kept, pool.map(self.scrape, self.targets.values()), strict=True):
                    kept[name].append(one)
        return kept

    def is_well(self) -> bool:
        status = subprocess.run(
            [sys.executable, "-m", "app.cli", "status", "--node", self.state.members[0].control_url],
            cwd=ROOT, capture_output=True,
        )  # fmt: skip
        return status.returncode == 0 and self.critical() == 0

    def critical(self) -> float:
        found = self.scrape(self.targets["console/console"]) or {"": 1.0}
        return sum(value for key, value in found.items() if "critical" in key or not key)

    def wait_until_well(self) -> None:
        ends = time.monotonic() + 180
        while not self.is_well():
            if time.monotonic() > ends:
                raise SystemExit("the demo does not come back")
            time.sleep(2)

    # --- the breaks -------------------------------------------------------------------------------------------------
    def follower(self) -> Any:
        return self.member("FOLLOWER")

    def leader(self) -> Any:
        return self.member("LEADER")

    def member(self, role: str) -> Any:
        for one in self.state.members:
            found = self.scrape(one.control_url) or {}
            if found.get(f'quorumscope_role{{role="{role}"}}') == 1:
                return one
        raise SystemExit(f"no {role}")

    def again_and_again(self, what: str) -> Callable[[int], None]:
        """Such a break ends by itself after half a minute."""
        victim = self.follower().id

        def breaking(number: int) -> None:
            if number % 4 == 0:
                self.cli("demo", "break", what, victim, "--pid", str(self.demo.pid))

        return breaking

    def flip(self, number: int) -> None:
        if number == 0:
            victim = self.follower()
            self.cli("demo", "break", "flip", victim.id, "--pid", str(self.demo.pid))
            self.cli("scrub", "--node", victim.control_url)

    def transfers(self, number: int) -> None:
        if number < 8:
            self.cli("transfer", self.follower().id, "--node", self.state.members[0].control_url)

    def bad_file(self, number: int) -> None:
        if number == 0:
            (self.folder / "member-secret").chmod(0o644)
            os.kill(engine_of(self.state.members[0].pid), signal.SIGHUP)

    @contextlib.contextmanager
    def stopped(self, *pids: int) -> Iterator[Callable[[int], None]]:
        try:
            yield lambda number: [os.kill(pid, signal.SIGSTOP) for pid in pids if number == 0] and None
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def console_pid(self) -> int:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if b"console" in words and f"sqlite:///{self.db}".encode() in words:
                    return int(path.parent.name)
        raise SystemExit("no console")

    def record(self) -> dict[str, dict[str, list[Scrape]]]:
        found: dict[str, dict[str, list[Scrape]]] = {}

        def keep(name: str, breaking: Callable[[int], None]) -> None:
            print(name, file=sys.stderr, flush=True)
            found[name] = self.timeline(breaking)

        self.wait_until_well()
        keep("quiet", lambda _: None)
        for what in ("partition", "pause"):
            keep(what, self.again_and_again(what))
            self.cli("demo", "heal", "--pid", str(self.demo.pid))
            self.wait_until_well()
        keep("flip", self.flip)
        self.wait_until_well()
        keep("elections", self.transfers)
        self.wait_until_well()
        keep("bad file", self.bad_file)
        (self.folder / "member-secret").chmod(0o600)
        os.kill(engine_of(self.state.members[0].pid), signal.SIGHUP)
        self.wait_until_well()
        with self.stopped(self.console_pid()) as breaking:
            keep("console stopped", breaking)
        self.wait_until_well()
        with contextlib.closing(sqlite3.connect(self.db, isolation_level=None)) as database:
            keep("database locked", lambda number: number == 0 and database.execute("BEGIN IMMEDIATE") and None)
        self.wait_until_well()
        victims = [one for one in self.state.members if one.id != self.follower().id]
        keep("two nodes gone", lambda number: number == 0 and [os.kill(one.pid, 9) for one in victims] and None)
        return found

    def close(self) -> None:
        self.demo.send_signal(signal.SIGINT)
        self.demo.wait(60)

    # --- on a disk of its own ---------------------------------------------------------------------------------------
    def fill(self, left_share: float) -> None:
        """Something else than the group takes most of the disk: what is left of it is this share."""
        disk = os.statvfs(self.folder)
        taken = disk.f_bavail - int(disk.f_blocks * left_share)
        with (self.folder / "somebody-elses").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, taken * disk.f_frsize)

    def nearly_full(self, number: int) -> None:
        """Below the rule's share, with room for another data file."""
        if number == 0:
            self.fill(LEFT_SHARE)

    def full(self, number: int) -> None:
        """No room for another data file, and the ones that there are written to their ends."""
        if number:
            return
        self.fill(NO_FILE_SHARE)
        for _ in range(BODIES_MAX):
            answer = httpx2.post(
                f"{self.leader().control_url}/api/v1/entries", content=bytes(BODY_BYTES), timeout=10, trust_env=False,
                headers={"content-type": "application/octet-stream"},
            )  # fmt: skip
            if answer.status_code != 200:
                return
        raise SystemExit("the disk was not full")

    def record_disk(self) -> dict[str, dict[str, list[Scrape]]]:
        found: dict[str, dict[str, list[Scrape]]] = {}
        for name, breaking in (("disk nearly full", self.nearly_full), ("disk full", self.full)):
            self.wait_until_well()
            print(name, file=sys.stderr, flush=True)
            found[name] = self.timeline(breaking)
            (self.folder / "somebody-elses").unlink()
        return found


def main() -> None:
    out, small_disk = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(dir=small_disk) as place:
        recorder = Recorder(Path(place))
        try:
            breaks = recorder.record() if small_disk is None else recorder.record_disk()
        finally:
            recorder.close()
    known = json.loads(out.read_text())["breaks"] if out.exists() else {}
    out.write_text(written(breaks, known))


def written(breaks: dict[str, dict[str, list[Scrape]]], known: dict[str, Any]) -> str:
    """As promtool takes it: each break's series with their values; `known`: those that were recorded before."""
    series = known | {name: dict(series_of(timeline)) for name, timeline in breaks.items()}
    shape = {"interval_s": INTERVAL_S, "quiet_scrapes": QUIET_SCRAPES, "breaks": series}
    return json.dumps(shape, indent=0, sort_keys=True) + "\n"


def series_of(timeline: dict[str, list[Scrape]]) -> Iterator[tuple[str, str]]:
    """Series and values, with the labels that Prometheus adds; a scrape that fails ends what was known."""
    for target, scrapes in timeline.items():
        job, _, instance = target.partition("/")
        added = f'instance="{instance}",job="quorumscope-{job}"' + (',group="demo"' if job == "node" else "")
        yield f"up{{{added}}}", " ".join(str(int(one is not None)) for one in scrapes)
        for key in sorted({key for one in scrapes if one is not None for key in one}):
            name, _, labels = key.partition("{")
            values = [None if one is None else one.get(key) for one in scrapes]
            shown = [
                "stale" if value is None and before is not None else "_" if value is None else f"{value:g}"
                for before, value in zip([None, *values], values, strict=False)
            ]
            yield f"{name}{{{added}{',' if labels else ''}{labels or '}'}", " ".join(shown)


if __name__ == "__main__":
    main()
