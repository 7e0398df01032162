"""The console's settings; the command line fills them in, tests write them by hand.

Invariant: `secure` says whether browsers see HTTPS. A console that listens beyond loopback without it refuses to start
(`check`), unless a proxy in front is named with `behind_proxy`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from app.security.second_factor import Wanted
from node.config import ConfigError, is_loopback, read_token
from node.config_models import OidcTable
from node.logs import Format, Level
from node.tls_files import tls_trouble

DEFAULT_DB = Path(".quorumscope") / "console.db"


class SettingsError(ValueError):
    """The console cannot start with these settings; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Seed:
    """A group to watch, named by the control plane of any of its members."""

    control_url: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """See the module's docstring."""

    db_url: str = f"sqlite+aiosqlite:///{DEFAULT_DB}"
    host: str = "127.0.0.1"
    port: int = 8421
    seeds: tuple[Seed, ...] = ()
    # Bearer token sent to control planes that ask for one (theirs, never a user's).
    node_token: str | None = None
    node_token_file: Path | None = None  # where that was read, and is read again
    node_ca_file: Path | None = None
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    behind_proxy: bool = False
    # Names under which browsers reach the console, beside the address it listens on.
    allowed_hosts: tuple[str, ...] = ()
    sample_interval_ms: int = 500
    session_idle_s: int = 12 * 3600
    session_max_s: int = 7 * 24 * 3600
    history_days: int = 30
    trail_days: int = 730
    operations_days: int = 90
    # Of local users; those of an OpenID provider are asked by it.
    second_factor: Wanted = "optional"
    # The OpenID provider that people may come from; none without an issuer.
    oidc: OidcTable = field(default_factory=OidcTable)
    log_level: Level = "info"
    log_format: Format = "console"
    demo: bool = False
    # Where `demo break` listens, when this console belongs to a demo.
    demo_control_url: str | None = None

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def tls(self) -> bool:
        return self.tls_cert_file is not None

    @property
    def secure(self) -> bool:
        """Browsers reach this console over HTTPS, its own or a proxy's."""
        return self.tls or self.behind_proxy

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    @property
    def public_url(self) -> str:
        """As browsers reach it: behind a proxy by the first of the names that it answers to."""
        if not self.behind_proxy:
            return self.url
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{self.allowed_hosts[0] if self.allowed_hosts else host}"

    @property
    def provider_url(self) -> str:
        """As the OpenID provider knows it."""
        return self.oidc.console_url or self.public_url

    def check(self) -> None:
        """Raises SettingsError where starting would be unsafe or senseless."""
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise SettingsError("TLS needs both a certificate file and a key file")
        trouble = tls_trouble(self.tls_cert_file, self.tls_key_file, self.node_ca_file)
        if trouble is not None:
            raise SettingsError(f"TLS: {trouble}")
        if not self.loopback and not self.secure:
            raise SettingsError(
                f"refusing to serve {self.host} over plain HTTP: passwords and sessions would cross the network in the"
                " clear. Give a certificate and key, listen on 127.0.0.1, or say --behind-proxy if a proxy ends TLS"
            )
        self.check_provider()
        if self.sample_interval_ms < 100:
            raise SettingsError("sample_interval_ms must be at least 100")

    def check_provider(self) -> None:
        """Raises SettingsError."""
        oidc = self.oidc
        if not oidc.issuer:
            return
        if not is_safe(oidc.issuer):
            raise SettingsError(f"oidc.issuer {oidc.issuer} is neither https nor on this machine: anybody could answer")
        if oidc.console_url and oidc.console_url.startswith("https:") is not self.secure:
            raise SettingsError(
                f"oidc.console_url {oidc.console_url}: browsers reach this console at {self.public_url}"
            )
        try:
            if oidc.client_secret_file is not None:
                read_token(oidc.client_secret_file)
        except ConfigError as error:
            raise SettingsError(f"oidc.client_secret_file: {error}") from None
        trouble = tls_trouble(None, None, oidc.ca_file)
        if trouble is not None:
            raise SettingsError(f"oidc.ca_file: {trouble}")


def is_safe(url: str) -> bool:
    """Whether what is sent there and answered from there stays between the two: https, or this machine."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (
            parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        )
    except ValueError:
        return False
