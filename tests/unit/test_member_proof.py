"""The proof of a shared secret (SAFETY C11): what passes, and every way to pass without the secret that we know of."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import pytest

from node.transport.member_proof import (
    BY_ACCEPTER,
    BY_DIALER,
    SENT_BEFORE_PROOF,
    AccepterProof,
    DialerProof,
    ProofError,
    Said,
    fresh_nonce,
    is_proved,
    make_mac,
)

SECRET, OTHER = b"s" * 64, b"t" * 64


def whole(node_id: str, **more: Any) -> dict[str, Any]:
    return {
        "code": 200, "group": "g", "node_id": node_id, "group_id": "id", "version_min": 1, "version_max": 2,
        "store_id": f"store-{node_id}", "api_url": "http://x", "end_index": 7, "recorded": {"n1": "ü\ud800"},
    } | more  # fmt: skip


class Pair:
    """n0 dials n1; each step's bytes are kept."""

    def __init__(self, dialers: tuple[bytes, ...] = (SECRET,), accepters: tuple[bytes, ...] = (SECRET,)) -> None:
        self.dialer = DialerProof(dialers, "n0", "n1")
        self.hello = self.dialer.hello(whole("n0"))
        self.accepter = AccepterProof(accepters, "n1", self.hello)
        self.answer = self.accepter.answer(whole("n1"))

    def proof(self, **more: Any) -> bytes:
        return self.dialer.proof(json.loads(self.answer), whole("n0", **more))


def test_both_prove_themselves_and_the_whole_hello_comes_with_the_proof() -> None:
    pair = Pair()
    proof = pair.proof()
    pair.accepter.check(proof)
    assert {name: value for name, value in json.loads(proof).items() if name != "mac"} == whole("n0")


def test_the_mac_is_what_the_text_says() -> None:
    said = Said("id", "n0", "n1", "aa", "bb", (b"hello", b"answer"))
    content = hashlib.sha256(hashlib.sha256(b"hello").digest() + hashlib.sha256(b"answer").digest()).hexdigest()
    raw = b""
    for part in ("hello2", "accepter", "id", "n0", "n1", "aa", "bb", content):
        raw += len(part).to_bytes(4, "big") + part.encode()
    expected = hmac.new(SECRET, raw, hashlib.sha256).hexdigest()
    assert make_mac(SECRET, BY_ACCEPTER, said) == expected
    assert expected == "2296a7cc3c2013f752030be7ab5763d3a7e16bf69de363dd840d6c09347ec302"


def test_nothing_that_only_a_member_may_know_is_told_before() -> None:
    pair = Pair()
    for body in (pair.hello, pair.answer):
        reported = json.loads(body)
        assert set(reported) <= SENT_BEFORE_PROOF
        assert not {"store_id", "end_index", "api_url", "life_ids", "recorded", "term"} & set(reported)


@pytest.mark.parametrize(
    ("dialers", "accepters", "passes"),
    [
        ((SECRET,), (SECRET,), True),
        ((OTHER, SECRET), (SECRET, OTHER), True),  # in the middle of a rotation
        ((SECRET,), (OTHER, SECRET), False),  # the accepter proves with its first, which the dialer lacks
        ((OTHER, SECRET), (SECRET,), False),
        ((SECRET,), (OTHER,), False),
    ],
)
def test_each_proves_with_its_first_secret_and_takes_any(
    dialers: tuple[bytes, ...], accepters: tuple[bytes, ...], passes: bool
) -> None:
    pair = Pair(dialers, accepters)
    if passes:
        pair.accepter.check(pair.proof())
        return
    with pytest.raises(ProofError):
        pair.accepter.check(pair.proof())


def test_a_mac_of_the_accepter_proves_no_dialer() -> None:
    """Reflection: whoever has no secret sends back what it was sent."""
    pair = Pair()
    forged = whole("n0") | {"mac": json.loads(pair.answer)["mac"]}
    with pytest.raises(ProofError):
        pair.accepter.check(json.dumps(forged).encode())


def test_a_members_answer_to_us_proves_nobody_to_it() -> None:
    """A stranger dials n1 as n0 while n0 dials the stranger as n1: it has nothing to give to either."""
    dialled, victim = Pair(), DialerProof((SECRET,), "n0", "n1")
    theirs = victim.hello(whole("n0"))
    accepter = AccepterProof((SECRET,), "n1", theirs)
    answer = json.loads(accepter.answer(whole("n1")))
    assert victim.proof(answer, whole("n0"))  # as it should be: this is n1's own answer, relayed
    with pytest.raises(ProofError):
        victim.proof(json.loads(dialled.answer), whole("n0"))  # n1's answer to another HELLO
    swapped = AccepterProof((SECRET,), "n0", json.dumps(json.loads(theirs) | {"node_id": "n1"}).encode())
    with pytest.raises(ProofError):
        victim.proof(json.loads(swapped.answer(whole("n0"))), whole("n0"))  # our own answer, sent back to us


def test_what_was_recorded_proves_nothing_again() -> None:
    first = Pair()
    recorded = first.proof()
    first.accepter.check(recorded)
    with pytest.raises(ProofError):
        first.accepter.check(recorded)  # once
    second = AccepterProof((SECRET,), "n1", first.hello)  # the same HELLO on another connection
    second.answer(whole("n1"))
    with pytest.raises(ProofError):
        second.check(recorded)


def test_a_proof_without_an_answered_hello_is_none() -> None:
    with pytest.raises(ProofError):
        AccepterProof((SECRET,), "n1", Pair().hello).check(Pair().proof())


@pytest.mark.parametrize("name", ["store_id", "end_index", "node_id", "group_id"])
def test_what_is_told_with_the_proof_cannot_be_changed(name: str) -> None:
    pair = Pair()
    fields = json.loads(pair.proof())
    fields[name] = "other"
    with pytest.raises(ProofError):
        pair.accepter.check(json.dumps(fields).encode())


def test_the_whole_hello_is_of_the_member_that_the_first_one_named() -> None:
    pair = Pair()
    with pytest.raises(ProofError):
        pair.accepter.check(pair.dialer.proof(json.loads(pair.answer), whole("n2")))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"5", b"{}", b'{"node_id":"n0"}', b'{"node_id":"n0","nonce":5}', b"[" * 100_000,
     b'{"node_id":"n0","nonce":"' + b"a" * 129 + b'"}', '{"node_id":"n0","nonce":"ü"}'.encode()],
)  # fmt: skip
def test_nonsense_is_no_proof(body: bytes) -> None:
    with pytest.raises(ProofError):
        AccepterProof((SECRET,), "n1", body)
    pair = Pair()
    with pytest.raises(ProofError):
        pair.accepter.check(body)


@pytest.mark.parametrize("change", [{"mac": None}, {"mac": ""}, {"mac": "0" * 64}, {"nonce": None}, {"nonce": "00"}])
def test_an_answer_without_its_proof_is_refused(change: dict[str, Any]) -> None:
    pair = Pair()
    with pytest.raises(ProofError):
        pair.dialer.proof(json.loads(pair.answer) | change, whole("n0"))


def test_parts_cannot_be_shifted_into_each_other() -> None:
    one = Said("g", "n0", "n1", "aa", "bb", (b"x",))
    other = Said("gn", "0", "n1", "aa", "bb", (b"x",))
    assert make_mac(SECRET, BY_DIALER, one) != make_mac(SECRET, BY_DIALER, other)
    assert not is_proved((OTHER, SECRET), BY_DIALER, other, make_mac(SECRET, BY_DIALER, one))


def test_another_member_at_this_address_is_named_where_it_proves_who_it_is() -> None:
    """Two addresses of [peers] were exchanged: the secret is right, and who has it is another one than was meant."""
    pair = Pair()
    accepter = AccepterProof((SECRET,), "n2", pair.hello)
    answer = json.loads(accepter.answer(whole("n2")))
    with pytest.raises(ProofError, match="it proves to be n2, so that this is the address of n2"):
        pair.dialer.proof(answer, whole("n0"))
    for said in ("n3", "n" * 300, 7, None):
        with pytest.raises(ProofError, match="it has another secret"):
            pair.dialer.proof(answer | {"node_id": said}, whole("n0"))
    answer = json.loads(AccepterProof((OTHER,), "n2", pair.hello).answer(whole("n2")))
    with pytest.raises(ProofError, match="it has another secret"):
        pair.dialer.proof(answer, whole("n0"))


def test_nonces_are_fresh() -> None:
    assert len({fresh_nonce() for _ in range(100)}) == 100
    assert len(bytes.fromhex(fresh_nonce())) == 32
