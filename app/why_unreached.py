"""Why a connection could not be made, in the system's own words.

What tries several addresses in turn says itself only that all attempts failed; the reason is the cause of that error.
"""

from __future__ import annotations

import errno
import os
import re
import ssl
from typing import Final

_QUOTED: Final = re.compile(r":? *(?:bytearray\(|b['\"]).*", re.DOTALL)  # of an answer that is no HTTP


def own_words(error: BaseException) -> str:
    """A library's, without what it quotes of an answer: whoever may name an address would read there what some service
    inside of the network says to strangers."""
    return _QUOTED.sub("", str(error))


def authority_hint(said: str) -> str:
    """What a command adds where the certificate that it was shown is signed by no authority that it knows."""
    unknown = ("self-signed certificate", "unable to get local issuer certificate", "unable to get issuer certificate")
    return " (--ca FILE names the authority that signed its certificate)" if any(one in said for one in unknown) else ""


def why_unreached(error: BaseException) -> str:
    """Such as "connection refused"; the error's own words where no system call is behind it."""
    said, seen = own_words(error) or type(error).__name__, error
    for _ in range(16):  # causes of causes
        if isinstance(seen, BaseExceptionGroup):
            seen = seen.exceptions[0]
            continue
        if isinstance(seen, ssl.SSLError):
            return said  # its numbers are none of the system's
        if isinstance(seen, OSError) and type(seen.errno) is int and seen.errno > 0:
            return os.strerror(seen.errno).lower()
        if isinstance(seen, OSError) and seen.strerror:
            said = seen.strerror.lower()  # a resolver's, with numbers of its own
        behind = seen.__cause__ or seen.__context__
        if behind is None:
            break
        seen = behind
    return said


def is_refused(error: BaseException) -> bool:
    """Whether a machine answered, and nothing listens there."""
    return why_unreached(error) == os.strerror(errno.ECONNREFUSED).lower()
