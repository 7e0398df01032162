"""One row of the tables of `advice.py` and `broker_advice.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advice:
    """`heals`: in a demo, `demo heal` ends it. `actions`: what the console has a button for."""

    means: str
    step: str
    section: str
    command: str = "{status}"
    curl: str = "curl -s {url}/api/v1/state"
    actions: tuple[str, ...] = ()
    heals: bool = False
