"""What a command was given to be let in, carried over to the commands that it prints: those run as they are pasted.

Invariant: nothing is printed that the command in question does not take, and no token itself.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.commands.tls_options import TlsFlags

MEMBERS_TOO: Final = frozenset({"status", "members", "broker", "topic", "consumer", "transfer", "get", "append", "kv"})
CONTROL_PLANES: Final = frozenset({"scrub", "restart", "trim", "pins", "ha", "audit"})  # members see no certificate
OF_THE_GROUP: Final = ("quorumscope status", "quorumscope members ")
TOKEN: Final = "$QUORUMSCOPE_TOKEN"


@dataclass(frozen=True, slots=True)
class AccessFlags:
    """`named`: the options that said which group; `has_token`: one is shown, from a file or from $QUORUMSCOPE_TOKEN."""

    tls: TlsFlags = field(default_factory=TlsFlags)
    token_file: Path | None = None
    has_token: bool = False
    named: tuple[str, ...] = ()

    def again(self, *words: str) -> str:
        """Another command to the same group."""
        return self.over(shlex.join(["quorumscope", *words, *self.named]))

    def in_its_shape(self, command: str, own_url: str | None) -> str:
        """A command about the group as a whole names it as this one did, by its members, where it did: a control plane
        that they only name may not be reached from here. One about a member asks that one's own, `own_url`."""
        words, _, url = command.partition(" --node ")
        if (
            self.named[:1] in (("--peers",), ("--config",))
            and words.startswith(OF_THE_GROUP)
            and url not in ("", own_url)
        ):
            return self.again(*shlex.split(words)[1:])
        return self.over(command)

    def over(self, command: str) -> str:
        """A command that names its group itself."""
        family = f"{command} ".split(" ")[1] if command.startswith("quorumscope ") else ""
        files = {"--ca": self.tls.ca, "--token-file": self.token_file}
        if family in MEMBERS_TOO:
            files |= {"--cert": self.tls.cert, "--key": self.tls.key}
        elif family not in CONTROL_PLANES:
            return command
        missing = [(flag, str(file)) for flag, file in files.items() if file and f"{flag} " not in command]
        return " ".join([command, *(f"{flag} {shlex.quote(file)}" for flag, file in missing)])

    def over_curl(self, line: str) -> str:
        """The same for a call of a control plane."""
        if not line.startswith("curl "):
            return line
        found = line
        if self.has_token and TOKEN not in line:
            found = found.replace("curl", f'curl -H "Authorization: Bearer {TOKEN}"', 1)
        if self.token_file is not None:
            found = found.replace(TOKEN, f"$(cat {shlex.quote(str(self.token_file))})", 1)
        if self.tls.ca is not None and "https://" in line:
            found = found.replace("curl", f"curl --cacert {shlex.quote(str(self.tls.ca))}", 1)
        return found
