"""What a browser carries between two steps of a login, so that nothing of it is kept here: sealed, good for minutes.

The content is encrypted and authenticated with the console's key (app.security.sealed) for one purpose. Invariant: what
was changed, is for something else or is too old reads as None.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from app.security.sealed import Seal, SealError

COOKIE_BYTES_MAX: Final = 4000  # browsers keep no larger one


@dataclass(frozen=True, slots=True)
class SealedCookie:
    """`name` is appended to the session cookie's."""

    seal: Seal
    name: str
    purpose: str
    life_s: int
    clock: Callable[[], float] = time.time

    def text_of(self, content: dict[str, Any]) -> str:
        plain = json.dumps({**content, "at": int(self.clock())}, separators=(",", ":"))
        return base64.urlsafe_b64encode(self.seal.seal(plain, self.purpose)).decode()

    def content_of(self, text: str | None) -> dict[str, Any] | None:
        if not text or len(text) > COOKIE_BYTES_MAX:
            return None
        try:
            found = json.loads(self.seal.open(base64.urlsafe_b64decode(text), self.purpose))
        except (binascii.Error, SealError, ValueError):
            return None
        return found if -1 <= self.clock() - found["at"] <= self.life_s else None
