"""The named tokens of a control plane: several at once, each with rights and an end, in one file that is read again.

A line of the file is `NAME RIGHTS END sha256:DIGEST`: rights as in [access] (`observe+operate`), the end as RFC 3339 or
`never`, and the SHA-256 of the token, so that whoever reads the file cannot use it. Two lines may have one name: so a
token is replaced while the old one still works. Invariants: a line that cannot be read makes the whole file one that
cannot be read, and nothing is granted by mistake; a token whose end has passed is known and refused by its name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from node.access_rows import RIGHTS, Right
from node.regular_file import open_regular

PREFIX: Final = "qsn_"
NEVER: Final = "never"
FILE_BYTES_MAX: Final = 64 << 10
TOKENS_MAX: Final = 256
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
ID_CHARS: Final = 12


class TokensError(ValueError):
    """The file cannot be used; the message names it, the line, and what is wrong."""


class ControlToken(NamedTuple):
    """One line."""

    name: str
    rights: Right
    ends_at: datetime | None
    digest: str

    @property
    def id(self) -> str:
        """By which people tell lines apart."""
        return self.digest.removeprefix("sha256:")[:ID_CHARS]

    def line(self) -> str:
        ends = NEVER if self.ends_at is None else rfc3339(self.ends_at)
        return f"{self.name} {words_of(self.rights)} {ends} {self.digest}\n"


def rfc3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def words_of(rights: Right) -> str:
    return "+".join(word for word, right in RIGHTS.items() if right and right in rights) or "nothing"


def rights_of(text: str) -> Right:
    """Raises ValueError."""
    found = Right.NOTHING
    for word in text.split("+"):
        if word.strip() not in RIGHTS:
            raise ValueError(f"{word.strip()!r} is no right; there are {', '.join(RIGHTS)}")
        found |= RIGHTS[word.strip()]
    return found


def digest_of(token: str) -> str:
    return "sha256:" + hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def token_of(line: str) -> ControlToken:
    """Raises ValueError."""
    words = line.split()
    if len(words) != 4:
        raise ValueError("a line is NAME RIGHTS END sha256:DIGEST; `quorumscope access issue` writes one")
    name, rights, ends, digest = words
    if NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name: letters, digits, '.', '_', '@' and '-', at most 64")
    if DIGEST.fullmatch(digest) is None:
        raise ValueError("the last word is sha256: and 64 hexadecimal digits, not the token itself")
    if ends == NEVER:
        return ControlToken(name, rights_of(rights), None, digest)
    try:
        at = datetime.fromisoformat(ends)
    except ValueError:
        raise ValueError(f"{ends!r} is no time such as 2027-01-31T22:00:00Z, nor `{NEVER}`") from None
    if at.tzinfo is None:
        raise ValueError(f"{ends!r} names no time zone")
    return ControlToken(name, rights_of(rights), at, digest)


def tokens_of(text: str, path: Path) -> tuple[ControlToken, ...]:
    found: list[ControlToken] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            found.append(token_of(line))
        except ValueError as error:
            raise TokensError(f"tokens file {path}, line {number}: {error}") from None
    if len(found) > TOKENS_MAX:
        raise TokensError(f"tokens file {path}: {len(found)} tokens; {TOKENS_MAX} at most")
    if len({one.digest for one in found}) < len(found):
        raise TokensError(f"tokens file {path}: two lines are about one token")
    return tuple(found)


def read_tokens(path: Path) -> tuple[ControlToken, ...]:
    """Raises TokensError."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_BYTES_MAX + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise TokensError(f"tokens file {path}: {getattr(error, 'strerror', None) or error}") from None
    if mode & 0o007:
        raise TokensError(f"tokens file {path}: others may read it; chmod o-rwx {path}")
    if len(data) > FILE_BYTES_MAX:
        raise TokensError(f"tokens file {path}: more than {FILE_BYTES_MAX} bytes")
    return tokens_of(text, path)


# --- the file from the command line ---


@contextmanager
def held(path: Path) -> Iterator[None]:
    """One command at a time changes what lies in this directory. Raises TokensError."""
    try:
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise TokensError(f"{path.parent}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_tokens(path: Path, tokens: Sequence[ControlToken]) -> None:
    """Whole or not at all; for its owner only. Raises TokensError."""
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.writelines(one.line() for one in tokens)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():  # as wide as its owner made it
            os.chmod(beside, path.stat().st_mode & 0o770)
        os.replace(beside, path)
    except OSError as error:
        raise TokensError(f"{path}: {error.strerror}") from None


def issue(path: Path, name: str, rights: Right, days: int | None) -> tuple[ControlToken, str]:
    """The new line, and the token itself, which nobody can read again. Raises TokensError."""
    if NAME.fullmatch(name) is None:
        raise TokensError(f"{name!r} is no name: letters, digits, '.', '_', '@' and '-', at most 64")
    token = PREFIX + secrets.token_urlsafe(32)
    ends = None if days is None else datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    made = ControlToken(name, rights, ends, digest_of(token))
    with held(path):
        known = read_tokens(path) if path.exists() else ()
        if len(known) >= TOKENS_MAX:
            raise TokensError(f"{path} has {TOKENS_MAX} tokens already; revoke one first")
        write_tokens(path, (*known, made))
    return made, token


def revoke(path: Path, which: str) -> tuple[ControlToken, ...]:
    """Takes out every line with this name, or the one with this id; what went. Raises TokensError."""
    with held(path):
        known = read_tokens(path)
        gone = tuple(one for one in known if which in (one.name, one.id))
        if gone:
            write_tokens(path, [one for one in known if one not in gone])
    return gone
