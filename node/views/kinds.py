"""The views by the names under which they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from node.views.base import AnswerView
from node.views.closures import ClosuresView
from node.views.events import EventsView
from node.views.members import MembersView
from node.views.replication import DispatchersView, WatermarksView
from node.views.state import StateView

# Resource of the control plane, and `what` of an INTROSPECT frame.
VIEWS: Final[Mapping[str, type[AnswerView]]] = {
    "state": StateView,
    "watermarks": WatermarksView,
    "dispatchers": DispatchersView,
    "closures": ClosuresView,
    "events": EventsView,
    "members": MembersView,
}
