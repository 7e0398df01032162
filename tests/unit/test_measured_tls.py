"""How much of what a TLS connection sends may bring nothing, by a clock of the test's own."""

from __future__ import annotations

import ssl

import pytest

from node import measured_tls
from node.measured_tls import FORGIVEN_BYTES, PER_BYTE, WASTED_BYTES_MAX, Measured


class Clock:
    now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(measured_tls, "time", made)
    return made


def test_what_says_something_is_never_too_much(clock: Clock) -> None:
    one = Measured.__new__(Measured)
    for brought in (1 << 14, 100, 1 << 14, 40):
        for _ in range(10_000):
            one._count(brought + 22, brought)


def test_who_fills_small_records_up_is_forgiven_with_time(clock: Clock) -> None:
    one = Measured.__new__(Measured)
    for _ in range(100_000):  # a request of 100 bytes in a record of 512 five times a second, for hours
        clock.now_s += 0.2
        one._count(512, 100)


def test_what_brings_nothing_is_ended_soon_and_not_before(clock: Clock) -> None:
    one = Measured.__new__(Measured)
    one._count(WASTED_BYTES_MAX, 0)
    clock.now_s += 1.0
    one._count(FORGIVEN_BYTES, 0)
    with pytest.raises(ssl.SSLError):
        one._count(27, 0)
    other = Measured.__new__(Measured)
    with pytest.raises(ssl.SSLError):
        for _ in range(WASTED_BYTES_MAX):  # a little between them buys a little
            other._count(27 * PER_BYTE, 1)
