"""The database's tests on PostgreSQL as well: `python -m tests.postgresql`, a part of `make test`.

Starts Debian's PostgreSQL for itself (an empty directory, a free port on loopback, an unprivileged user), runs the
tests that have a database on SQLite and on it, and fails unless the same tests passed on both. Prints both counts.
With `--sqlite-results FILE`, the JUnit report of a run that had these tests among others, SQLite is not run again.
"""

from __future__ import annotations

import argparse
import os
import pwd
import secrets
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.ports import free_ports
from tests.prepare import find_postgresql, waived

ROOT: Final = Path(__file__).parents[1]
FILES: Final = (
    "test_console_db.py", "test_history.py", "test_migrations_with_data.py", "test_security_access.py",
    "test_trail.py",
)  # fmt: skip
# Nothing in there outlives the run.
FAST: Final = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=64MB",
    "max_connections=200",
)


def unprivileged() -> tuple[list[str], pwd.struct_passwd | None]:
    """How to run something as nobody in particular: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return [], None
    user = next((pwd.getpwnam(name) for name in ("postgres", "nobody") if _known(name)), None)
    if user is None:
        raise SystemExit("prepare: neither a user postgres nor a user nobody exists here")
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--no-new-privs"], user


def _known(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


@contextmanager
def server(binaries: Path) -> Iterator[str]:
    """The URL of a server that is there for as long as this lasts."""
    as_user, user = unprivileged()
    word, (port,) = secrets.token_urlsafe(16), free_ports(1)
    # Where that user gets to: $TMPDIR may be ours alone.
    with tempfile.TemporaryDirectory(prefix="pg-", dir=None if user is None else "/tmp") as place:
        folder, password = Path(place), Path(place) / "password"
        password.touch(0o600)
        password.write_text(word)
        if user is not None:
            for path in (folder, password):
                os.chown(path, user.pw_uid, user.pw_gid)
        data = folder / "data"
        run = [*as_user, str(binaries / "initdb"), "--pgdata", str(data), "--username", "quorumscope", "--no-sync"]
        run += ["--auth", "scram-sha-256", "--pwfile", str(password), "--encoding", "UTF8", "--locale", "C.UTF-8"]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, cwd="/")
        options = ["-c", f"port={port}", "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}"]
        for one in FAST:
            options += ["-c", one]
        log = folder / "log"
        control = [*as_user, str(binaries / "pg_ctl"), "--pgdata", str(data), "--wait", "--timeout", "60"]
        start = [*control, "--log", str(log), "--options", " ".join(options), "start"]
        try:
            done = subprocess.run(start, stdout=subprocess.DEVNULL, cwd="/")
            if done.returncode:
                raise SystemExit(f"PostgreSQL did not start: {log.read_text() if log.exists() else ''}")
            yield f"postgresql://quorumscope:{word}@127.0.0.1:{port}"
        finally:
            subprocess.run([*control, "--mode", "immediate", "stop"], stdout=subprocess.DEVNULL, cwd="/")


def passed(url: str | None, out: Path, jobs: int) -> set[str]:
    """The ids of the tests that passed; ends the run where one did not."""
    environment = {name: value for name, value in os.environ.items() if name != "TEST_DATABASE_SERVER"}
    if url is not None:
        environment["TEST_DATABASE_SERVER"] = url
    files = [f"tests/unit/{name}" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not sqlite and not long", f"--junitxml={out}", *files]
    command += ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []
    done = subprocess.run(command, cwd=ROOT, env=environment)
    if done.returncode:
        raise SystemExit(f"the tests do not pass on {'PostgreSQL' if url else 'SQLite'}")
    return reported(out)


def reported(report: Path) -> set[str]:
    """The ids of the tests that passed, as a JUnit report has them."""
    cases = ET.parse(report).iter("testcase")
    return {f"{one.get('classname')}::{one.get('name')}" for one in cases if len(one) == 0}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.postgresql")
    parser.add_argument("--sqlite-results", type=Path, metavar="FILE", help="a run's report: SQLite is not run again")
    report: Path | None = parser.parse_args().sqlite_results
    binaries = find_postgresql()
    if binaries is None:
        print("NOT RUN: tests on PostgreSQL (install Debian's package `postgresql`)", file=sys.stderr)
        return 0 if waived("postgresql") else 1
    jobs = min(2, os.cpu_count() or 1)
    with tempfile.TemporaryDirectory() as place:
        on_sqlite = passed(None, Path(place) / "sqlite.xml", jobs) if report is None else reported(report)
        with server(binaries) as url:
            on_postgresql = passed(url, Path(place) / "postgresql.xml", jobs)
    if report is not None:  # which holds more: tests of everything else, those of SQLite alone, long ones
        on_sqlite &= on_postgresql
    print(f"database tests: {len(on_sqlite)} passed on SQLite, {len(on_postgresql)} passed on PostgreSQL")
    different = on_sqlite ^ on_postgresql
    if different or not on_postgresql:
        print(f"these ran on one of them only: {sorted(different)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
