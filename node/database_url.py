"""Which databases a console can keep its users and history in, judged by the URL alone: before anything is made."""

from __future__ import annotations

import re
from typing import Final

DATABASES: Final = ("sqlite", "sqlite+aiosqlite", "postgresql", "postgres", "postgresql+psycopg")
SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.]*):(//)?")
SERVER: Final = re.compile(r"//(?:[^@]*@)?(?:\[[^]]*\]|[^:/?]*)(?::(?P<port>[^/?]*))?")
PORT_MAX: Final = 65_535


def check_database(url: str) -> str:
    """A SQLite file's path or URL, or PostgreSQL's URL. Raises ValueError, which names no part that may be secret."""
    found = SCHEME.match(url)
    if found is None:
        return url  # a path
    scheme, slashes = found.groups()
    if scheme not in DATABASES:
        if slashes is None:
            return url  # a file's name may have a colon
        raise ValueError(
            f"{scheme}:// is no database that is supported: sqlite:///FILE or postgresql://USER@HOST:PORT/NAME"
        )
    if slashes is None:
        raise ValueError(f'"//" is missing behind "{scheme}:"')
    if not scheme.startswith("sqlite"):
        server = SERVER.match(url, found.end() - len(slashes))
        port = server["port"] if server is not None else None
        if port and not (port.isascii() and port.isdigit() and 0 < int(port[:9]) <= PORT_MAX):
            raise ValueError("its port is no number from 1 to 65535")
    return url
