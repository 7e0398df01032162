"""The registry: every function that takes bytes from outside, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz import members, records, small_files, wire
from tests.fuzz.target import Target

TARGETS: Mapping[str, Target] = {
    target.name: target for target in (*wire.TARGETS, *records.TARGETS, *members.TARGETS, *small_files.TARGETS)
}
