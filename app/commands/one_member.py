"""One running member, whose control plane a command is given by its address: what is asked of it, and how that ends.

Invariant: of an operation that was begun it is said how it ended, or that nobody knows.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.commands.control_calls import control_call, control_state
from app.commands.endings import Exit, Failure
from app.commands.output import say
from app.commands.targets import contexts_of, token_of
from app.commands.tls_options import TlsFlags
from node.views.state import StateView

LOOK_EVERY_S: Final = 0.3
ENDS: Final = {"done": Exit.FINE, "failed": Exit.FINDING, "cancelled": Exit.FINDING}
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OneMember:
    """`url` is its control plane; `tls`: None for this machine's authorities."""

    url: str
    token: str | None
    tls: ssl.SSLContext | None

    @classmethod
    def at(cls, url: str, token_file: Path | None, ca: Path | None) -> OneMember:
        """As the options of a command name it. Raises Failure."""
        return cls(url, token_of(token_file), contexts_of(TlsFlags(ca))[1])

    def state(self) -> StateView:
        """Raises Failure."""
        return control_state(self.url, None, self.token, self.tls)

    def call(self, method: str, resource: str, body: Json | None = None) -> Json:
        """Raises Failure."""
        return control_call(method, self.url, resource, self.token, body, tls=self.tls)

    def followed(self, what: str, says: str, body: Json | None = None) -> Json:
        """The operation to its end; its progress goes to stderr. Raises Failure: with UNKNOWN_OUTCOME where it was
        begun, and the control plane answers no more."""
        operation = self.call("POST", what, body or {})
        shown: str | None = None
        while operation.get("state") == "running":
            if operation.get("progress") != shown:
                shown = str(operation.get("progress"))
                say(f"{says}: {shown}")
            time.sleep(LOOK_EVERY_S)
            try:
                operation = self.call("GET", f"operations/{operation.get('id')}")
            except Failure as failure:
                if failure.code != Exit.UNREACHABLE:
                    raise
                text = f"outcome unknown: the {what} was begun, and how it ended nobody tells: {failure}"
                raise Failure(Exit.UNKNOWN_OUTCOME, text) from failure
        if operation.get("state") is None:
            raise Failure(Exit.UNDETERMINED, f"{self.url} did not say how its {what} ended")
        return operation


def end_of(operation: Json) -> int:
    """The exit code of a command whose operation ended like this."""
    return ENDS.get(str(operation["state"]), Exit.UNDETERMINED)
