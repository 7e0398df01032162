"""How often somebody may try to log in: a growing delay per account and per address, kept in memory.

An attempt counts as failed from its beginning, so that a hundred at once are no better than one after the other; a
success takes its own back. Invariants: who is asked to wait costs no hashing and no database; waiting does not lengthen
the wait; an account is never closed for longer than its longest delay, since anybody may fail in its name (one-time
links go past this). Addresses are shared by many people (loopback, NAT): they have more attempts and a shorter delay.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FORGOTTEN_AFTER_S: Final = 3600.0
KEPT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Limit:
    """`free` failures without a delay, then 1, 2, 4 … seconds up to `longest_s`."""

    free: int
    longest_s: float

    def delay_s(self, failures: int) -> float:
        return 0.0 if failures < self.free else min(self.longest_s, 2.0 ** min(failures - self.free, 30))


ACCOUNT: Final = Limit(5, 300.0)
ADDRESS: Final = Limit(20, 60.0)


@dataclass(slots=True)
class Tries:
    failures: int = 0
    last_s: float = 0.0


class Ledger:
    """Failures by key; those that failed longest ago are forgotten first."""

    def __init__(self, limit: Limit, clock: Callable[[], float]) -> None:
        self.limit, self.clock = limit, clock
        self.tries: OrderedDict[str, Tries] = OrderedDict()

    def wait_s(self, key: str) -> float:
        known = self.tries.get(key)
        if known is None:
            return 0.0
        since_s = self.clock() - known.last_s
        if since_s > FORGOTTEN_AFTER_S:
            del self.tries[key]
            return 0.0
        return max(0.0, self.limit.delay_s(known.failures) - since_s)

    def failed(self, key: str) -> None:
        known = self.tries.setdefault(key, Tries())
        known.failures, known.last_s = known.failures + 1, self.clock()
        self.tries.move_to_end(key)
        while len(self.tries) > KEPT_MAX:
            self.tries.popitem(last=False)

    def take_back(self, key: str) -> None:
        known = self.tries.get(key)
        if known is not None:
            known.failures -= 1
            if known.failures <= 0:
                del self.tries[key]


class LoginLimits:
    """See the module's docstring."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.accounts, self.addresses = Ledger(ACCOUNT, clock), Ledger(ADDRESS, clock)

    def begin(self, account: str, address: str) -> int:
        """Seconds to wait first; 0: the attempt may go on, and counts as failed until `succeeded`."""
        name, place = account.lower(), place_of(address)
        wait_s = max(self.accounts.wait_s(name), self.addresses.wait_s(place))
        if wait_s > 0:
            return math.ceil(wait_s)
        self.accounts.failed(name)
        self.addresses.failed(place)
        return 0

    def undo(self, account: str, address: str) -> None:
        """Takes an attempt back that was never judged: it counts against nobody."""
        self.accounts.take_back(account.lower())
        self.addresses.take_back(place_of(address))

    def succeeded(self, account: str, address: str) -> None:
        """The account starts afresh; the address only gets this attempt back, whoever else fails from there."""
        self.accounts.tries.pop(account.lower(), None)
        self.addresses.take_back(place_of(address))


def place_of(address: str) -> str:
    """IPv6 by its /64: one host has all of it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
