"""What all tables of the configuration share (`config_models.py` has most of them).

Invariant: unknown keys are errors, values never change.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from node.protocol.peers import split_address


def _address(text: str) -> str:
    split_address(text)
    return text


def _address_or_nothing(text: str) -> str:
    return _address(text) if text else ""


Address = Annotated[str, AfterValidator(_address)]
AddressOrNothing = Annotated[str, AfterValidator(_address_or_nothing)]


class Table(BaseModel):
    """One table."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def is_loopback(host: str) -> bool:
    """Whether a name or address never leaves this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
