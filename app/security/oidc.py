"""The OpenID provider: what is asked of it, and when its word counts (OpenID Connect Core 1.0, code flow with PKCE).

Authlib writes the requests and checks the claims, joserfc the signature; here is what neither decides: who is asked,
how much is read, and what is refused. Invariants: the provider is the one issuer of the configuration, and its metadata
says so itself; nothing is asked of, and no browser is sent to, an address that is neither https nor on this machine; no
redirect is followed, no answer is read beyond ANSWER_BYTES_MAX or TOTAL_S. An ID token counts if one of the provider's
public keys signed it with one of ALGORITHMS (never `none`, never a shared secret), for this issuer, this client and
this login's nonce, and if it is not over. Groups are read from there alone: what is not signed says nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

import httpx2
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from app.console.settings import is_safe
from app.security.bounded_transport import Bounded, ProviderError
from app.why_unreached import own_words
from node.config import read_token
from node.config_models import OidcTable
from node.measured_tls import client_context
from node.tls_files import tls_trouble

log = logging.getLogger(__name__)
ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
    "EdDSA",
)
KEY_TYPES: Final = ("RSA", "EC", "OKP")
KEYS_MAX: Final = 100
SKEW_S: Final = 60
METADATA_S: Final = 3600.0
AGAIN_S: Final = 5.0  # after a failure, and between two looks for a key that is not known
USED_MAX: Final = 10_000
SUBJECT_CHARS_MAX: Final = 255
ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")
Json = dict[str, Any]


class Provider:
    """See the module's docstring. `transport` replaces the network in tests."""

    def __init__(
        self,
        settings: OidcTable,
        transport: httpx2.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings, self.clock = settings, clock
        self._given = transport
        self.transport = Bounded(transport or self._network(self.read_authorities()))
        self.secret = self.read_secret()
        self._metadata: Json | None = None
        self._keys: KeySet | None = None
        self._failed: ProviderError | None = None
        self._read_s = self._failed_s = self._keys_s = -METADATA_S
        self._asking = asyncio.Lock()
        self._used: OrderedDict[str, None] = OrderedDict()

    # --- what is read from files, and read again ---

    def read_secret(self) -> str | None:
        """Raises ConfigError."""
        file = self.settings.client_secret_file
        return None if file is None else read_token(file)

    def use_secret(self, secret: str | None) -> None:
        self.secret = secret

    def read_authorities(self) -> ssl.SSLContext | None:
        """None: those that this machine knows. Raises OSError, ValueError."""
        file = self.settings.ca_file
        trouble = tls_trouble(None, None, file)
        if trouble is not None:
            raise ValueError(trouble)
        return None if file is None else client_context(file)

    def use_authorities(self, authorities: ssl.SSLContext | None) -> None:
        """For connections from now on."""
        if self._given is None:
            self.transport = Bounded(self._network(authorities))

    @staticmethod
    def _network(authorities: ssl.SSLContext | None) -> httpx2.AsyncBaseTransport:
        # No connection is kept: they are few, and an older transport has nothing left to close.
        limits = httpx2.Limits(max_connections=8, max_keepalive_connections=0)
        return httpx2.AsyncHTTPTransport(verify=authorities or client_context(), limits=limits, trust_env=False)

    async def close(self) -> None:
        await self.transport.network.aclose()

    # --- what the provider says of itself ---

    @property
    def known(self) -> Json | None:
        """Its metadata, where somebody has asked already."""
        return self._metadata

    async def metadata(self) -> Json:
        """Kept for an hour. Raises ProviderError, for AGAIN_S the same one without asking."""
        async with self._asking:
            now_s = time.monotonic()
            if self._metadata is not None and now_s - self._read_s < METADATA_S:
                return self._metadata
            if self._failed is not None and now_s - self._failed_s < AGAIN_S:
                raise ProviderError(str(self._failed))
            try:
                url = self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
                found = self._checked(await self._get(url))
                self._keys = await self._read_keys(found["jwks_uri"])
            except ProviderError as error:
                self._failed, self._failed_s = error, now_s
                raise
            self._metadata, self._failed, self._read_s = found, None, now_s
            return found

    def _checked(self, found: Json) -> Json:
        if found.get("issuer") != self.settings.issuer:
            raise ProviderError(f"it calls itself {str(found.get('issuer'))[:200]!r}, not {self.settings.issuer!r}")
        for name in (*ENDPOINTS, "end_session_endpoint"):
            url = found.get(name)
            if url is None and name not in ENDPOINTS:
                continue
            if not isinstance(url, str) or len(url) > 2000 or not url.isprintable() or not is_safe(url):
                raise ProviderError(f"its {name} is no address that may be asked: {str(url)[:200]!r}")
            if url.startswith("http:") and self.settings.issuer.startswith("https:"):
                raise ProviderError(f"its {name} {url[:200]!r} steps down from https to http")
        return found

    async def _read_keys(self, url: str) -> KeySet:
        self._keys_s = time.monotonic()
        listed = (await self._get(url)).get("keys")
        if not isinstance(listed, list) or len(listed) > KEYS_MAX:
            raise ProviderError("it lists no keys")
        public: Any = [one for one in listed if isinstance(one, dict) and one.get("kty") in KEY_TYPES]
        try:
            return KeySet.import_key_set({"keys": [one for one in public if one.get("use", "sig") == "sig"]})
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise ProviderError(f"its keys cannot be read: {printable(error)}") from None

    async def _get(self, url: str) -> Json:
        async with httpx2.AsyncClient(transport=self.transport, trust_env=False) as client:
            try:
                answer = await client.get(url, headers={"accept": "application/json"})
            except (httpx2.HTTPError, OSError, ValueError) as error:
                raise ProviderError(f"{url}: {printable(own_words(error)) or type(error).__name__}") from None
        if answer.status_code != 200:
            raise ProviderError(f"{url} answered {answer.status_code}")
        try:
            found = json.loads(answer.content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ProviderError(f"{url} answered no JSON object")
        return found

    def end_session_url(self, back: str) -> str | None:
        """Where somebody logs out of the provider too. It asks them: nothing in this address is secret."""
        url = self._metadata.get("end_session_endpoint") if self._metadata is not None else None
        if url is None:
            return None
        said = urlencode({"client_id": self.settings.client_id, "post_logout_redirect_uri": back})
        return f"{url}{'&' if '?' in url else '?'}{said}"

    # --- a login ---

    def _client(self, redirect_uri: str, methods: Any = None) -> AsyncOAuth2Client:
        posts = isinstance(methods, list) and "client_secret_basic" not in methods and "client_secret_post" in methods
        method = "none" if self.secret is None else "client_secret_post" if posts else "client_secret_basic"
        return AsyncOAuth2Client(
            self.settings.client_id, self.secret, token_endpoint_auth_method=method, redirect_uri=redirect_uri,
            scope=" ".join(self.settings.scopes), code_challenge_method="S256", transport=self.transport,
            trust_env=False, follow_redirects=False,
        )  # fmt: skip

    async def begin(self, redirect_uri: str) -> tuple[str, Json]:
        """Where the browser goes, and what `finish` wants again. Raises ProviderError."""
        known = await self.metadata()
        kept = {name: secrets.token_urlsafe(32) for name in ("state", "nonce", "verifier")}
        url, _ = self._client(redirect_uri).create_authorization_url(
            known["authorization_endpoint"], state=kept["state"], nonce=kept["nonce"], code_verifier=kept["verifier"]
        )
        return url, kept

    def used(self, state: str) -> bool:
        """Whether this login was finished already, well or badly; from now on it was."""
        if state in self._used:
            return True
        self._used[state] = None
        while len(self._used) > USED_MAX:
            self._used.popitem(last=False)
        return False

    async def finish(self, code: str, kept: Json, redirect_uri: str) -> Json:
        """The ID token's claims. Raises ProviderError."""
        known = await self.metadata()
        client = self._client(redirect_uri, known.get("token_endpoint_auth_methods_supported"))
        try:
            token = await client.fetch_token(
                known["token_endpoint"], grant_type="authorization_code", code=code, code_verifier=kept["verifier"],
                redirect_uri=redirect_uri,
            )  # fmt: skip
        except AuthlibBaseError as error:
            raise ProviderError(f"it did not take the code: {printable(error.error)}") from None
        except (httpx2.HTTPError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise ProviderError(f"it answered with no token: {printable(error)}") from None
        id_token = token.get("id_token")
        if not isinstance(id_token, str):
            raise ProviderError("it answered without an ID token")
        return await self._verified(id_token, kept["nonce"], str(token.get("access_token", "")))

    async def _verified(self, id_token: str, nonce: str, access_token: str) -> Json:
        try:
            signed = await self.signed(id_token)
            value: Json = {"essential": True, "value": self.settings.issuer}
            claims = CodeIDToken(
                signed.claims, signed.header,
                options={"iss": value, "aud": {**value, "value": self.settings.client_id}, "sub": {"essential": True}},
                params={"nonce": nonce, "client_id": self.settings.client_id, "access_token": access_token},
            )  # fmt: skip
            claims.validate(now=int(self.clock()), leeway=SKEW_S)
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise ProviderError(f"its ID token does not count: {printable(error)}") from None
        subject = claims["sub"]
        if not 0 < len(subject) <= SUBJECT_CHARS_MAX:
            raise ProviderError("its ID token does not count: nobody has such a `sub`")
        return dict(claims)

    async def signed(self, id_token: str) -> jwt.Token:
        """Any token that it signed, once its metadata are known. Raises ProviderError, JoseError and ValueError."""
        registry = JWSRegistry(algorithms=ALGORITHMS, strict_check_header=False)
        assert self._keys is not None
        try:
            return jwt.decode(id_token, self._keys, registry=registry)
        except InvalidKeyIdError:  # they change their keys now and then
            if time.monotonic() - self._keys_s < AGAIN_S or self._metadata is None:
                raise
            self._keys = await self._read_keys(self._metadata["jwks_uri"])
            return jwt.decode(id_token, self._keys, registry=registry)


def printable(error: object) -> str:
    """What somebody else wrote, as it may stand in a log and on a page."""
    return "".join(one if one.isprintable() else "·" for one in str(error)[:200])
