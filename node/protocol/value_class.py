"""Values that are made for every append: frozen for the type checker, and cheap to make.

A frozen dataclass sets each field through a call: 3.3 us for one of eleven fields, against 0.6 us for an open one. So
nothing guards a value at run time; mypy does, which sees the frozen dataclass that the decorator's arguments say.
Invariant: nobody changes a value that was made by somebody else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as value_class
else:
    from dataclasses import dataclass

    def value_class(*, slots: bool, frozen: bool) -> Any:
        """`dataclass` with the equality, the hash and the slots of a frozen one."""
        return dataclass(slots=slots, unsafe_hash=frozen)


__all__ = ["value_class"]
