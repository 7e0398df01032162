"""What reading a message store may raise.

Invariants: a decoder raises MessageFormatError and nothing else, whatever the bytes; the other is about a directory or
a question, and its text says what to do.
"""

from __future__ import annotations


class MessageFormatError(ValueError):
    """Bytes break a format of RocketMQ's; the message says which rule."""


class MessageStoreError(Exception):
    """A directory is no message store that can be read here, or it does not hold what was asked for."""
