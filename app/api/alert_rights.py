"""Who may see and silence which alert: a right on its group; everywhere, for what concerns the console or all groups.

Invariant: a problem of a group that the caller does not see is answered like one that does not stand.
"""

from __future__ import annotations

from app.console.errors import Forbidden, NotFound
from app.notify import rules
from app.notify.notifier import Notifier
from app.notify.rules import Alert
from app.security.roles import Right, Viewer


def allowed(viewer: Viewer, right: Right, scope: str) -> bool:
    """What concerns the console itself, or every group, asks for the right everywhere."""
    return viewer.can(right, None if scope == rules.CONSOLE else scope)


def standing(notifier: Notifier, scope: str, problem_id: str, viewer: Viewer, right: Right = Right.OPERATE) -> Alert:
    """Unknown, too, where the caller does not see its group; Forbidden without the right there. Raises NotFound."""
    found = notifier.memory.get(rules.key_of(scope, problem_id))
    if found is None or not allowed(viewer, Right.VIEW, scope):
        raise NotFound(f"No problem {problem_id!r} stands in {scope!r}; it may be over.", title="Unknown problem")
    check(viewer, right, scope)
    return found


def check(viewer: Viewer, right: Right, scope: str | None) -> None:
    if not allowed(viewer, right, scope or rules.CONSOLE):
        where = "on every group" if scope in (None, rules.CONSOLE) else f"on {scope}"
        raise Forbidden(f"This needs the right `{right}` {where}.")
