"""How a request of a message client ends, where it does not succeed."""

from __future__ import annotations


class ClientError(Exception):
    """Whatever goes wrong; the text says what and where."""


class Unavailable(ClientError):
    """No name server, or no broker that has the topic, answered in time. `sent`: the request may have arrived."""

    def __init__(self, text: str, *, sent: bool = False) -> None:
        super().__init__(text)
        self.sent = sent


class Closed(Unavailable):
    """This client is closed, or was while it waited: nothing more is known of what it was asked."""


class WrongLoop(Unavailable):
    """The client was first used in another event loop, or in the process that this one was forked from. Nothing was
    sent, and nothing of it changed."""


class NotSent(ClientError):
    """The broker refused it: it is not stored, and never will be. `code`: RocketMQ's."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} (code {code})")
        self.code = code


class SendUnknown(ClientError):
    """It may be stored: sending it again may store it twice."""
