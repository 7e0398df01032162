"""The file with the secret that members share (SAFETY C11), read and made.

One secret a line; empty lines do not count. The first is the one that a member proves, any is taken from others: to
change it, add the new one as the second line everywhere, then make it the first everywhere, then drop the old one.
Members read the file when they start, and again on SIGHUP (`node/rereading.py`).

Invariants: a file that others may read, or that holds no proper secret, is refused; an existing file is never written.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

from node.config import ConfigError
from node.regular_file import open_regular, whole

SECRET_CHARACTERS_MIN: Final = (
    32  # whoever connects gets a mac to guess at: so it must be drawn at random, not thought up
)
SECRETS_MAX: Final = 16
FILE_BYTES_MAX: Final = 64 * 1024


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """The secrets, the one to prove first. Raises ConfigError, which never quotes the file."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            content = whole(file, FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"secret file {path}: {error.strerror}") from error
    if mode & 0o077:
        raise ConfigError(f"secret file {path}: others may read it; chmod 600 {path}")
    found = tuple(line for line in (raw.strip() for raw in content.splitlines()) if line)
    if not 1 <= len(found) <= SECRETS_MAX:
        raise ConfigError(f"secret file {path}: {len(found)} secrets, one a line; 1 to {SECRETS_MAX} are allowed")
    for number, secret in enumerate(found, 1):
        if len(secret) < SECRET_CHARACTERS_MIN or any(not 0x21 <= one <= 0x7E for one in secret):
            raise ConfigError(
                f"secret file {path}: secret {number} is no word of at least {SECRET_CHARACTERS_MIN} characters;"
                f" make one with: openssl rand -hex 32"
            )
    return found


def make_secret(path: Path) -> bool:
    """Makes the file with a fresh secret, whole or not at all; False where there is one. Raises ConfigError."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(made, path)  # of several members that start together one makes it
        finally:
            made.unlink()
    except FileExistsError:
        return False
    except OSError as error:
        raise ConfigError(f"secret file {path}: {error.strerror}") from error
    return True
