"""How a broker in classic master/slave mode is asked: its `ha` is all that it says of itself, in place of a state.

Invariant: what is made of it says nothing that the broker did not: its epoch as the term, who leads, no log's marks.
"""

from __future__ import annotations

from typing import Final

from app.console.errors import ConsoleError, NodeUnreachable
from app.console.nodes import Nodes
from node.views.ha import HaView
from node.views.kinds import VIEWS
from node.views.reading import Unreadable, read
from node.views.state import StateView

NOT_THERE: Final = 404
STATE: Final = next(name for name, view in VIEWS.items() if view is StateView)


async def ask_either(
    nodes: Nodes, control_url: str, *, is_classic: bool, token: str | None = None
) -> tuple[StateView, HaView | None]:
    """A member's state, or a broker's of a pair, which has none; what it was last is asked for first.

    Raises ConsoleError, also for what cannot be read.
    """
    for classic in (is_classic, not is_classic):
        name = "ha" if classic else STATE
        try:
            said = await nodes.json("GET", control_url, name, token=token)
            if not classic:
                return read(StateView, said), None
            found = read(HaView, said)
            return state_of(found), found
        except Unreadable as error:
            text = f"{control_url}: its {name} cannot be read: {error}"
            raise NodeUnreachable(text, code="odd_answer") from None
        except ConsoleError as error:
            if error.status != NOT_THERE or classic is not is_classic:
                raise
    raise AssertionError("unreachable")


def state_of(said: HaView) -> StateView:
    """What of it a group's picture has a place for."""
    role, runs = None, said.broker == "ok"
    if runs and said.is_master is not None:
        role = "LEADER" if said.is_master else "FOLLOWER"
    return StateView(
        as_of=said.as_of, engine="ok" if runs else "down", engine_reason=said.reason, group=said.name,
        self_id=said.self_id, role=role, term=said.epoch, leader_id=said.self_id if said.is_master else None, peers=(),
        started_with=said.started_with,
    )  # fmt: skip
