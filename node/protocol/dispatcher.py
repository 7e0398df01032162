"""The state machine of a leader's dispatcher, as data: the dispatcher obeys it, the console draws it.

A dispatcher replicates to one peer. It COMPAREs until it finds where the two logs agree, has the peer TRUNCATE what
conflicts above that, and then APPENDs. INSTALL_SNAPSHOT has a peer begin where this log begins, or behind a state
machine's snapshot; one that cannot is left there, until a back-off or a new connection, like one that is DIVERGED. A
pair that is not listed cannot happen, and raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from node.protocol.codes import DispatcherState


class DispatcherEvent(StrEnum):
    """What can happen to a dispatcher."""

    MATCHED = "matched"  # COMPARE succeeded at the peer's end
    MATCHED_BELOW_END = "matched_below_end"  # COMPARE succeeded, but the peer holds more
    MISMATCHED = "mismatched"  # COMPARE failed: look further back
    CUT = "cut"  # nothing that conflicts is left above the match
    INCONSISTENT = "inconsistent"  # an APPEND or TRUNCATE did not fit the peer's log
    LOG_REGRESSED = "log_regressed"  # the peer's log ends below what it had: wiped or replaced
    RECONNECTED = "reconnected"  # a new connection: nothing known before it counts
    REFUSED = "refused"  # the peer would have to lose what it knows to be committed
    BELOW_BEGIN = "below_begin"  # the peer needs entries that this log no longer holds
    INSTALLED = "installed"  # the peer's log begins where this one does
    BACKOFF_OVER = "backoff_over"


_S, _E = DispatcherState, DispatcherEvent
TRANSITIONS: Mapping[tuple[DispatcherState, DispatcherEvent], DispatcherState] = {
    (_S.COMPARE, _E.MATCHED): _S.APPEND,
    (_S.COMPARE, _E.MATCHED_BELOW_END): _S.TRUNCATE,
    (_S.COMPARE, _E.MISMATCHED): _S.COMPARE,
    (_S.COMPARE, _E.LOG_REGRESSED): _S.COMPARE,
    (_S.COMPARE, _E.RECONNECTED): _S.COMPARE,
    (_S.COMPARE, _E.REFUSED): _S.DIVERGED,
    (_S.COMPARE, _E.BELOW_BEGIN): _S.INSTALL_SNAPSHOT,
    (_S.TRUNCATE, _E.CUT): _S.APPEND,
    (_S.TRUNCATE, _E.INCONSISTENT): _S.COMPARE,
    (_S.TRUNCATE, _E.LOG_REGRESSED): _S.COMPARE,
    (_S.TRUNCATE, _E.RECONNECTED): _S.COMPARE,
    (_S.TRUNCATE, _E.REFUSED): _S.DIVERGED,
    (_S.APPEND, _E.INCONSISTENT): _S.COMPARE,
    (_S.APPEND, _E.LOG_REGRESSED): _S.COMPARE,
    (_S.APPEND, _E.RECONNECTED): _S.COMPARE,
    (_S.APPEND, _E.REFUSED): _S.DIVERGED,
    (_S.APPEND, _E.BELOW_BEGIN): _S.INSTALL_SNAPSHOT,
    (_S.INSTALL_SNAPSHOT, _E.INSTALLED): _S.COMPARE,
    (_S.INSTALL_SNAPSHOT, _E.REFUSED): _S.DIVERGED,
    (_S.INSTALL_SNAPSHOT, _E.BACKOFF_OVER): _S.COMPARE,
    (_S.INSTALL_SNAPSHOT, _E.RECONNECTED): _S.COMPARE,
    (_S.DIVERGED, _E.BACKOFF_OVER): _S.COMPARE,
    (_S.DIVERGED, _E.RECONNECTED): _S.COMPARE,
}
