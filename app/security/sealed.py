"""Secrets at rest that the console must be able to read again: the tokens it shows to control planes.

Sealed with a key of 32 random bytes in a file of its own, `<database>.key` beside a SQLite database, otherwise
`.quorumscope/console.key`; 0600, made when first needed. AES-256-GCM with a random nonce of 96 bits (NIST SP 800-38D);
what a secret is for is authenticated with it.

What it defends: whoever gets the database alone (a backup, a copy, an SQL injection) reads no token, and cannot move
one group's token to another group. What it does not: whoever reads both files, as the console's own user and root do,
or the console's memory; and an older sealed token that is put back passes for the present one.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.db.engine import normal_url
from node.regular_file import open_regular

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
VERSION: Final = b"\x01"
SECRET_BYTES_MAX: Final = 4096


class SealError(ValueError):
    """The key file cannot be used, or what was sealed cannot be opened with it; the message says what to do."""


def key_file_of(db_url: str) -> Path:
    url = normal_url(db_url)
    if url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:":
        return Path(f"{url.database}.key")
    return Path(".quorumscope") / "console.key"


class Seal:
    """Seals and opens with the key in `key_file`; `purpose` binds a sealed secret to the one place it is for."""

    def __init__(self, key_file: Path) -> None:
        self.key_file = key_file
        self._key: bytes | None = None

    def seal(self, secret: str, purpose: str) -> bytes:
        plain = secret.encode()
        if len(plain) > SECRET_BYTES_MAX:
            raise SealError(f"a secret may have {SECRET_BYTES_MAX} bytes")
        nonce = secrets.token_bytes(NONCE_BYTES)
        hidden = AESGCM(self._load(make=True)).encrypt(nonce, plain, purpose.encode())
        return VERSION + nonce + hidden

    def open(self, sealed: bytes, purpose: str) -> str:
        nonce, hidden = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        cipher = AESGCM(self._load(make=False))
        try:
            if sealed[:1] != VERSION or len(nonce) != NONCE_BYTES:
                raise InvalidTag
            return cipher.decrypt(nonce, hidden, purpose.encode()).decode()
        except InvalidTag:
            message = f"{self.key_file} is not the key this was sealed with, or it was changed: give it again"
            raise SealError(message) from None

    def _load(self, *, make: bool) -> bytes:
        if self._key is None:
            self._key = read_key(self.key_file, make=make)
        return self._key


def read_key(path: Path, *, make: bool) -> bytes:
    """Raises SealError where there is none and none is to be made, and where others may read it."""
    try:
        with open_regular(path, follows_link=False) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            key = file.read(KEY_BYTES + 1)
    except FileNotFoundError:
        if not make:
            raise SealError(f"{path} is missing: put it back, or give the secrets again") from None
        return make_key(path)
    except OSError as error:
        raise SealError(f"{path}: {error.strerror}") from None
    if mode & 0o077:
        raise SealError(f"{path}: others may read it; chmod 600 {path}")
    if len(key) != KEY_BYTES:
        raise SealError(f"{path} holds no key of {KEY_BYTES} bytes: put the right file back")
    return key


def make_key(path: Path) -> bytes:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = secrets.token_bytes(KEY_BYTES)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:  # another process was first
        return read_key(path, make=False)
    except OSError as error:
        raise SealError(f"{path}: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key
