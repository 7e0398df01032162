"""The headers that every answer carries.

No inline script and no inline style anywhere, so that injected markup stays text. `Referrer-Policy: same-origin`
and not `no-referrer`: under the latter browsers send `Origin: null` with forms, which the gate refuses.
"""

from __future__ import annotations

CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
ALWAYS: tuple[tuple[str, str], ...] = (
    ("content-security-policy", CSP),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
HSTS = ("strict-transport-security", "max-age=31536000")
NO_STORE = ("cache-control", "no-store")


def for_path(path: str, *, secure: bool) -> list[tuple[bytes, bytes]]:
    """Raw header pairs; static files may be cached, states and bodies never."""
    wanted = [*ALWAYS]
    if secure:
        wanted.append(HSTS)
    if not path.startswith("/static/"):
        wanted.append(NO_STORE)
    return [(name.encode(), value.encode()) for name, value in wanted]
