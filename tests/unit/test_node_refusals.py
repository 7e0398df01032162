"""What a member's refusal becomes for whoever asked the console."""

from __future__ import annotations

import pytest

from app.console.nodes import Answer, NodeRefused, check_status


@pytest.mark.parametrize(
    ("asked", "passed_on"),
    [("1", "1"), ("60", "60"), ("86400", "60"), ("", None), ("-1", None), ("9" * 5000, None), ("٣", None)],
)  # fmt: skip
def test_how_long_a_member_wants_to_be_left_alone_is_passed_on(asked: str, passed_on: str | None) -> None:
    """Clients wait as Retry-After says; the console kept it for itself."""
    answer = Answer(503, {"retry-after": asked}, b'{"detail": "no leader", "headers": {"retry-after": "7"}}')
    with pytest.raises(NodeRefused) as refused:
        check_status(answer, "http://n0", "state")
    assert refused.value.headers.get("retry-after") == passed_on and refused.value.status == 503


def test_one_that_says_nothing_of_it_sets_no_header() -> None:
    with pytest.raises(NodeRefused) as refused:
        check_status(Answer(421, {}, b""), "http://n0", "state")
    assert refused.value.headers == {}
