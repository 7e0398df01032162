"""A call's path in disguise: letters as escapes or in another case, slashes doubled, steps to nowhere, a sign too many.

A router, a proxy or a library may take any of these for the plain path: whoever judges a right has to see the same
call.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

API: Final = "/api/v1/"
ENDS: Final = ("%0A", "%0D%0A", "%0A%0A", "%0B", "%00", "%09", "%20", "%C2%85", "%E2%80%A8", "/", "//", "/.", "%2F",
               ";a", ".", "?", "%3F", "%23", "\\", "%5C", "/..;/", ".json")  # fmt: skip
FRONTS: Final = ("/api/v1/", "//api/v1/", "/api//v1/", "/api/v1//", "/./api/v1/", "/API/v1/", "/api/v1/%0A")
STEPS: Final = ("/./", "//", "/x/../", "/%2e/", "/x/%2e%2e/", "%2F", "/%20/", "/;a/")


def disguises(rng: random.Random, path: str, drawn: int) -> Iterator[str]:
    """Each front and each end once, and `drawn` ones with several of all kinds at once. `path`: behind the API's."""
    yield from (f"{front}{path}" for front in FRONTS)
    yield from (f"{API}{path}{end}" for end in ENDS)
    for _ in range(drawn):
        front, end = rng.choice(FRONTS), rng.choice(("", *ENDS))
        yield front + "".join(_disguised(rng, sign) for sign in path) + end


def _disguised(rng: random.Random, sign: str) -> str:
    if sign == "/":
        return rng.choice(STEPS) if rng.random() < 0.4 else sign
    match rng.randrange(24):
        case 0:
            return f"%{ord(sign):02x}"
        case 1:
            return f"%{ord(sign):02X}"
        case 2:
            return f"%25{ord(sign):02x}"
        case 3:
            return sign.swapcase()
    return sign
