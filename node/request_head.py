"""What the head of an HTTP request must be before anything is judged by it: by control plane and console alike.

Invariant: what a request is judged by, a proxy before this server cannot have read otherwise.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

ONCE: Final = ("host", "origin", "authorization", "content-type", "sec-fetch-site")
VERSIONS: Final = ("1.0", "1.1")
Fault = tuple[int, str, str]  # the answer's status, title and detail


def fault_in_head(scope: Scope, asked: Headers) -> Fault | None:
    """Of two values of one header a proxy may have judged the other one (RFC 9110, 5.3); a request without Host is of
    whatever name a proxy took it for (RFC 9112, 3.2); a body in a coding that nobody undoes here is not what it seems
    (RFC 9112, 6.1; RFC 9110, 8.4), and would be stored as it came."""
    if scope["http_version"] not in VERSIONS:
        return 505, "Unknown version", f"Ask in HTTP {' or '.join(VERSIONS)}, not {scope['http_version']}."
    for name in ONCE:
        if len(asked.getlist(name)) > 1:
            return 400, "Repeated header", f"The header {name!r} may be there once."
    if "host" not in asked and scope["http_version"] != "1.0":
        return 400, "No host", "A request says in Host which name it is for."
    content = ",".join(asked.getlist("content-encoding")).strip()
    if content.lower() not in ("", "identity"):
        return 415, "Unsupported coding", f"Send the body as it is, not in the coding {content!r}."
    coding = ",".join(asked.getlist("transfer-encoding")).strip().lower()
    if coding not in ("", "chunked"):
        return 501, "Unknown coding", f"A body may come in the transfer coding chunked, not {coding!r}."
    return None


def without_cookies(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """For the application: FastAPI parses the cookies of every request, and the library that it has for it takes
    backslashes out of quoted values in a time that grows with the square of their number (CVE-2024-7592). 60 KB from
    anybody at all held the loop for three seconds."""
    return [one for one in headers if one[0] != b"cookie"]
