"""What answers at a member's address and belongs to another group: how that is worded, and known again."""

from __future__ import annotations

from typing import Final

from app.health.group_view import MemberView

OTHER_GROUP: Final = " belongs to another group of this name"
OTHER_NAME: Final = " belongs to the group "
OF_ANOTHER: Final = "it belongs to another group "  # as `status` words it
OF_ANOTHER_NAME: Final = "it belongs to a group of another name"


def is_foreign(one: MemberView) -> bool:
    """Whether whoever asked found another group's member, or control plane, there."""
    problem = one.problem or ""
    return problem.startswith((OF_ANOTHER, OF_ANOTHER_NAME)) or problem.endswith(OTHER_GROUP) or OTHER_NAME in problem
