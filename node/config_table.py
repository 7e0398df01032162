"""What all tables of the configuration share (`config_models.py` has most of them).

Invariant: unknown keys are errors, values never change; a number is written as one and fits what programs count with.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator

from node.protocol.peers import split_address

NUMBER_MAX: Final = 1 << 62  # sums of two still fit 64 bits


def _address(text: str) -> str:
    split_address(text)
    return text


def _address_or_nothing(text: str) -> str:
    return _address(text) if text else ""


Address = Annotated[str, AfterValidator(_address)]
AddressOrNothing = Annotated[str, AfterValidator(_address_or_nothing)]


class Table(BaseModel):
    """One table. What a key means is the text below it, which the page of all keys reads from the source: pydantic
    would parse it at each start of each process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        default = cls.model_fields[info.field_name or ""].default
        if isinstance(value, bool) and isinstance(default, int | float) and not isinstance(default, bool):
            raise ValueError(f"a number is wanted, not {str(value).lower()}")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _is_countable(cls, value: Any) -> Any:
        if isinstance(value, int) and value > NUMBER_MAX:
            raise ValueError(f"{value} is more than {NUMBER_MAX}")
        return value


def is_loopback(host: str) -> bool:
    """Whether a name or address never leaves this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
