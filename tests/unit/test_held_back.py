"""Messages wait for the record that they speak of, in order, and for no other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.engine.held_back import WAITING_MAX, HeldBack


def test_a_record_that_nobody_speaks_of_holds_nothing_back() -> None:
    held: HeldBack[str] = HeldBack()
    assert not held.closed
    number = held.ordered(spoken_of=False)
    assert not held.closed
    assert held.durable(number) == []


def test_what_was_made_after_a_save_waits_for_it_and_not_for_later_ones() -> None:
    held: HeldBack[str] = HeldBack()
    term = held.ordered(spoken_of=True)
    held.hold("vote asked")
    peers = held.ordered(spoken_of=False)
    held.hold("asked again")
    vote = held.ordered(spoken_of=True)
    held.hold("vote given")
    assert held.durable(term) == ["vote asked", "asked again"] and held.closed
    assert held.durable(peers) == [] and held.closed
    assert held.durable(vote) == ["vote given"] and not held.closed


def test_what_waits_is_bounded() -> None:
    held: HeldBack[int] = HeldBack()
    number = held.ordered(spoken_of=True)
    for one in range(WAITING_MAX + 10):
        held.hold(one)
    assert held.durable(number) == list(range(WAITING_MAX))


@given(st.lists(st.sampled_from(["spoken of", "about peers", "message", "saved"]), max_size=40))
def test_nothing_overtakes(steps: list[str]) -> None:
    """Against the rule itself: a message leaves when every save ordered before it that is spoken of is durable."""
    held: HeldBack[int] = HeldBack()
    ordered: list[bool] = []
    saved, made, left = 0, [], []
    for step in [*steps, *["saved"] * len(steps)]:
        if step == "message":
            if held.closed:
                held.hold(len(made))
            else:
                left.append(len(made))
            made.append(max((number for number, spoken in enumerate(ordered, 1) if spoken), default=0))
        elif step != "saved":
            ordered.append(step == "spoken of")
            held.ordered(spoken_of=ordered[-1])
        elif saved < len(ordered):
            saved += 1
            left += held.durable(saved)
        assert left == [one for one, needs in enumerate(made) if needs <= saved]
