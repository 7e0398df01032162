"""What a change of the members says in its request: the console takes the same as a control plane, and passes it on."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from node.protocol.peers import checked_address, checked_id
from node.views.request_body import RequestBody

TermAsked = Annotated[int | None, Field(ge=0, le=(1 << 63) - 1)]
Address = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(checked_address)]


class Change(RequestBody):
    """What every change may say: `if_term` refuses with 412 when the term moved."""

    if_term: TermAsked = None
    dry_run: bool = False


class NewMember(Change):
    """`learner`: it stays one; else it becomes a voter once it has caught up. `replaces`: then that voter leaves."""

    id: Annotated[str, Field(min_length=1, max_length=64), AfterValidator(checked_id)]
    address: Address
    learner: bool = False
    replaces: Annotated[str | None, Field(max_length=64)] = None


class Moved(Change):
    address: Address
