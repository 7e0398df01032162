"""What the demo's feeder appends with where it has brokers: each flight is a message.

A topic per origin, found by the tail number, chosen by the carrier's tag; flights of one aircraft go to one queue, in
order. A line of a file of the user's own is a message of one topic, as it is.

Invariant: an outcome that is not known stays one: nothing is sent twice.
"""

from __future__ import annotations

import json
from typing import Final

from node.client import AppendResult, NotAppended, OutcomeUnknown, Unreachable
from node.message_client import ClientError, MessageProducer, OutgoingMessage, SendUnknown, Unavailable

ORIGINS: Final = ("EWR", "JFK", "LGA")
FLIGHT_TOPICS: Final = tuple(f"flights-{one}" for one in ORIGINS)
LINES_TOPIC: Final = "lines"


def flight_message(body: bytes) -> OutgoingMessage:
    """Of one flight as JSON."""
    said = json.loads(body)
    tail, carrier = said.get("tailnum"), said.get("carrier")
    return OutgoingMessage(
        f"flights-{said['origin']}", body, keys=(tail,) if tail else (), tags=carrier or None, shard=tail or None
    )


def line_message(body: bytes) -> OutgoingMessage:
    return OutgoingMessage(LINES_TOPIC, body)


class MessageFeed:
    """Stands for the group's client where there are brokers: the feeder counts what came of each append."""

    def __init__(self, producer: MessageProducer, *, flights: bool) -> None:
        self._producer = producer
        self._message = flight_message if flights else line_message

    async def append(self, body: bytes) -> AppendResult:
        """Raises OutcomeUnknown, NotAppended, Unreachable. A message has no index that its sender knows: -1."""
        if not body:
            raise NotAppended("a message has a body")
        try:
            await self._producer.send(self._message(body))
        except SendUnknown as error:
            raise OutcomeUnknown(str(error)) from error
        except Unavailable as error:
            raise Unreachable(str(error)) from error
        except ClientError as error:
            raise NotAppended(str(error)) from error
        return AppendResult(-1, -1, -1)
