"""The registry: every function that takes bytes from outside, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz import client_commands, members, message_formats, message_stores, records, small_files, stores, wire
from tests.fuzz.target import Target

GROUPS = (wire, records, members, small_files, stores, message_formats, message_stores, client_commands)
TARGETS: Mapping[str, Target] = {target.name: target for group in GROUPS for target in group.TARGETS}
