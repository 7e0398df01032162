"""What a caller asks when leadership shall move: the same at a control plane and at the console."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from node.views.request_body import RequestBody

TERM_MAX_ASKED: Final = (1 << 63) - 1
DEADLINE_MS_MIN: Final = 100
DEADLINE_MS_MAX: Final = 60_000


class Transfer(RequestBody):
    """`to` absent or null: the best peer. `if_term` refuses with 412 when the term moved."""

    to: Annotated[str | None, Field(max_length=64)] = None
    if_term: Annotated[int | None, Field(ge=0, le=TERM_MAX_ASKED)] = None
    deadline_ms: Annotated[int | None, Field(ge=DEADLINE_MS_MIN, le=DEADLINE_MS_MAX)] = None
    dry_run: bool = False
