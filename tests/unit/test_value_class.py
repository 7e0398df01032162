"""Values that are cheap to make behave as frozen ones do, but for the guard at run time."""

from dataclasses import replace

from node.protocol.entry import Slab
from node.protocol.messages import PushKind, PushRequest

SLAB = Slab(5, 1, 100, b"data", b"records", 2, 2, 7, 8)


def test_values_compare_by_their_fields_and_can_be_keys() -> None:
    twin = Slab(5, 1, 100, b"data", b"records", 2, 2, 7, 8)
    assert (SLAB, hash(SLAB)) == (twin, hash(twin))
    assert replace(SLAB, last_chain=9) != SLAB
    push = PushRequest(1, PushKind.APPEND, "n0", 2, 0, -1, 4, 2, 7, 5, SLAB)
    assert {push: "sent"}[replace(push)] == "sent"


def test_values_take_no_more_memory_than_their_fields() -> None:
    assert not hasattr(SLAB, "__dict__")
