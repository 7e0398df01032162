"""Certificates for a try-out: one authority, and what it signs for members, clients and the console.

For a group that serves for real, its owner's authority signs; the names and uses that it has to give are these here
(docs/tls.md). Invariants: a folder is made whole or not at all, and one that holds anything is never written to; keys
are readable by their owner only (0600, the folder 0700).
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY: Final = "ca"
EVERY_HOST: Final = ("localhost", "127.0.0.1", "::1")
# A clock that is a little behind ours must not find them not valid yet.
EARLIER: Final = timedelta(hours=1)


class PkiError(Exception):
    """Nothing was made; the message says why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A certificate to be made: its common name, the hosts that it answers for, and whether it serves."""

    name: str
    hosts: tuple[str, ...] = ()
    serves: bool = False
    asks: bool = True


class Authority:
    """Signs with a key of its own, or with that of a folder that was made before. Raises PkiError, OSError."""

    def __init__(self, days: int, directory: Path | None = None) -> None:
        now = datetime.now(UTC)
        self._from, self._until = now - EARLIER, now + timedelta(days=days)
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Quorumscope try-out authority")])
        if directory is None:
            self._key = ec.generate_private_key(ec.SECP256R1())
            self._certificate = self._own_certificate()
        else:
            self._key, self._certificate = _read(directory)
            self._name = self._certificate.subject
            self._until = min(self._until, self._certificate.not_valid_after_utc)

    def _own_certificate(self) -> x509.Certificate:
        return (
            self._begin(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def _begin(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._from)
            .not_valid_after(self._until)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )

    def issue(self, wanted: Wanted) -> tuple[bytes, bytes]:
        """(certificate, key), PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.SERVER_AUTH] if wanted.serves else []
        uses += [ExtendedKeyUsageOID.CLIENT_AUTH] if wanted.asks else []
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, wanted.name)])
        builder = (
            self._begin(subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        )
        if wanted.hosts:
            names = [_general_name(host) for host in dict.fromkeys(wanted.hosts)]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key)

    def own(self) -> tuple[bytes, bytes]:
        """(certificate, key), PEM."""
        return _pem(self._certificate), _key_pem(self._key)


def _read(directory: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        key = serialization.load_pem_private_key((directory / f"{AUTHORITY}.key").read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((directory / f"{AUTHORITY}.crt").read_bytes())
    except (ValueError, TypeError) as error:
        raise PkiError(f"{directory} holds no authority that `pki demo` made: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise PkiError(f"{directory} holds no authority that `pki demo` made: its key is another one's")
    return key, certificate


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def wanted_for(
    members: Mapping[str, Sequence[str]], clients: Sequence[str], console: str, hosts: Sequence[str] = ()
) -> list[Wanted]:
    """What a group needs; `members`: ids and their own hosts, `hosts`: what every server answers for. Raises PkiError.

    A member's certificate serves its member port and its control plane, and shows it to other members.
    """
    every = (*EVERY_HOST, *hosts)
    found = [Wanted(name, (*own, *every), serves=True) for name, own in members.items()]
    found += [Wanted(name) for name in clients]
    found.append(Wanted(console, every, serves=True, asks=False))
    names = [AUTHORITY, *(one.name for one in found)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PkiError(f"two certificates would be named {twice!r}: give members, clients and the console other names")
    return found


def make(directory: Path, wanted: Sequence[Wanted], days: int, signed_by: Path | None = None) -> list[Path]:
    """Fills a new folder; the paths of the certificates, the authority's first. Raises PkiError, OSError.

    `signed_by`: the folder of an authority that there is; its key is not copied.
    """
    if not directory.name:
        raise PkiError(f"{str(directory)!r} is no new folder: name one")
    if directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir()))):
        raise PkiError(f"{directory} is there already, and nothing in it is overwritten: name a new folder, or move it")
    directory.parent.mkdir(parents=True, exist_ok=True)
    authority = Authority(days, signed_by)
    built = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))  # mode 0700
    try:
        certificate, key = authority.own()
        _put(built, AUTHORITY, certificate, key if signed_by is None else None)
        for one in wanted:
            _put(built, one.name, *authority.issue(one))
        built.rename(directory)  # fails where something came into it meanwhile
    except OSError:
        shutil.rmtree(built, ignore_errors=True)
        raise
    return [directory / f"{name}.crt" for name in (AUTHORITY, *(one.name for one in wanted))]


def _put(directory: Path, name: str, certificate: bytes, key: bytes | None) -> None:
    for path, content in ((directory / f"{name}.crt", certificate), (directory / f"{name}.key", key)):
        if content is None:
            continue
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
