"""Mails to a real SMTP server: in the clear, over STARTTLS and TLS, with a login, and what a server may do wrong."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, Session

from app.notify import mail
from app.notify.message import trial_payload
from app.notify.routes import MailTarget
from app.notify.webhook import NotDelivered
from app.times import utc_now
from tests.ports import free_ports
from tests.unit.console_kit import run, running

PASSWORD = "a secret of the mail server"
ATTEMPT_S = 60.0


class Box:
    """Takes mails; `refuses`: recipients."""

    def __init__(self, *refuses: str) -> None:
        self.refuses = refuses
        self.mails: list[EmailMessage] = []
        self.envelopes: list[Envelope] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.secured: list[bool] = []

    async def handle_RCPT(self, _server: Any, _session: Session, envelope: Envelope, address: str, _: Any) -> str:
        if address in self.refuses:
            return "550 no such\x1b[31m mailbox"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, session: Session, envelope: Envelope) -> str:
        content = envelope.content
        assert isinstance(content, bytes)
        self.mails.append(message_from_bytes(content, policy=policy.default))
        self.envelopes.append(envelope)
        self.secured.append(session.ssl is not None)
        return "250 taken"

    def authenticate(self, _server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == PASSWORD.encode(), handled=False)


@contextmanager
def server(box: Box, **more: Any) -> Iterator[int]:
    port = free_ports(1)[0]
    controller = Controller(box, hostname="127.0.0.1", port=port, ready_timeout=60, **more)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For `localhost` and 127.0.0.1, in one file with its key."""
    place = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", place / "key", "-out", place / "crt"],
        check=True, capture_output=True,
    )  # fmt: skip
    return place


@pytest.fixture
def trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The console's machine trusts that certificate; what is returned is the server's side."""
    monkeypatch.setattr(mail, "authorities", lambda: ssl.create_default_context(cafile=str(certificate / "crt")))
    return server_side(certificate)


def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "crt", certificate / "key")
    return context


def target(port: int, **more: Any) -> MailTarget:
    fields = {"host": "127.0.0.1", "port": port, "security": "plain", "sender": "q@example.org",
              "recipients": ["ops@example.org"]}  # fmt: skip
    return MailTarget.model_validate(fields | more)


def payload(text: str = "demo: n2 is cut off.", kind: str = "opened") -> dict[str, Any]:
    problem = {
        "severity": "critical", "since": "2026-11-22T03:00:00.000Z", "until": None, "means": "frames do not pass",
        "at_stake": "one more failure stops writes", "step": "look at the network", "command": "quorumscope status",
        "curl": None,
    }  # fmt: skip
    base = trial_payload("ops", "ann", utc_now(), "http://127.0.0.1:8421")
    return base | {"text": text, "kind": kind, "problem": problem}


async def send(to: MailTarget, password: str | None = None, sent: dict[str, Any] | None = None) -> str:
    return await mail.send(to, password, sent or payload(), attempt_s=ATTEMPT_S)


def failing(work: Callable[[], Any]) -> str:
    """Why it was not delivered."""
    with pytest.raises(NotDelivered) as caught:
        run(work())
    return str(caught.value)


def test_a_mail_says_what_is_wrong_and_what_to_do() -> None:
    box, sent = Box(), payload()
    with server(box) as port:
        assert asyncio.run(send(target(port, recipients=["ops@example.org", "b@example.org"]), sent=sent)) == "taken"
    (one,), (envelope,) = box.mails, box.envelopes
    assert envelope.mail_from == "q@example.org" and envelope.rcpt_tos == ["ops@example.org", "b@example.org"]
    assert one["Subject"] == "[Quorumscope] critical: demo: n2 is cut off." and one["To"] == ", ".join(
        envelope.rcpt_tos
    )
    assert one["Message-ID"] == f"<{sent['id']}@example.org>" and one["References"] == f"<{sent['thread']}@example.org>"
    assert one["Auto-Submitted"] == "auto-generated" and one["X-Quorumscope-Id"] == sent["id"]
    text = one.get_content()
    for words in ("Since:         2026-11-22T03:00:00.000Z", "At stake:      One more failure stops writes",
                  "    quorumscope status", "Page:          http://127.0.0.1:8421/notifications"):  # fmt: skip
        assert words in text, text


def test_a_member_s_words_end_no_header() -> None:
    box = Box()
    evil = "demo: n2: x\r\nBcc: all@example.org\r\n\r\n.\r\nMAIL FROM:<x@y.z>\u2028\x00" + "z" * 5000
    with server(box) as port:
        asyncio.run(send(target(port), sent=payload(evil)))
    (one,) = box.mails
    assert (
        one["Bcc"] is None and len(one["Subject"]) <= 160 and one["Subject"].startswith("[Quorumscope] critical: demo")
    )
    assert box.envelopes[0].rcpt_tos == ["ops@example.org"]


@pytest.mark.filterwarnings("ignore:Requiring AUTH")
@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_login_goes_over_tls_only(trusted: ssl.SSLContext, security: str) -> None:
    box = Box()
    more: dict[str, Any] = {"authenticator": box.authenticate, "auth_required": True}
    if security == "tls":
        more |= {"ssl_context": trusted, "auth_require_tls": False}
    else:
        more |= {"tls_context": trusted, "require_starttls": True}
    with server(box, **more) as port:
        to = target(port, security=security, user="console")
        assert asyncio.run(send(to, PASSWORD)) == "taken"
        assert (box.logins, len(box.mails)) == ([(b"console", PASSWORD.encode())], 1)
        reason = failing(lambda: send(to, "wrong password"))
        assert reason == "the login was refused: answered 535" and len(box.mails) == 1


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: Path, security: str) -> None:
    box = Box()
    side = server_side(certificate)
    more = {"ssl_context": side} if security == "tls" else {"tls_context": side}
    with server(box, **more) as port:
        assert "certificate verify failed" in failing(lambda: send(target(port, security=security)))
    assert box.mails == []


def test_a_server_without_starttls_gets_nothing() -> None:
    box = Box()
    with server(box) as port:
        reason = failing(lambda: send(target(port, security="starttls")))
    assert "STARTTLS" in reason and box.mails == []


def test_recipients_that_are_refused() -> None:
    box = Box("gone@example.org")
    with server(box) as port:
        some = asyncio.run(send(target(port, recipients=["ops@example.org", "gone@example.org"])))
        assert some == "taken, but refused for gone@example.org" and len(box.mails) == 1
        reason = failing(lambda: send(target(port, recipients=["gone@example.org"])))
        assert reason.startswith("no recipient was taken: gone@example.org: 550 no such") and "\x1b" not in reason


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Somebody who is no mail server."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            try:
                connection, _ = listener.accept()
                with connection:
                    serve(connection)
            except OSError:
                pass

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        assert not thread.is_alive(), "the connection was left open"


def dripping(connection: socket.socket) -> None:
    """A greeting without end: every read of the client is in time."""
    stop = threading.Event()
    while not stop.wait(0.05):
        connection.sendall(b"220-x\r\n")


def test_a_server_that_never_comes_to_an_end_is_left() -> None:
    with listening(dripping) as port:
        assert failing(lambda: mail.send(target(port), None, payload(), attempt_s=1.0)) == "no end within 1 s"


def test_who_is_no_mail_server() -> None:
    with listening(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        assert failing(lambda: send(target(port)))
    with listening(lambda connection: connection.sendall(b"554 go away\r\n")) as port:
        assert failing(lambda: send(target(port))) == "answered 554 go away"
    assert "cannot be reached" in failing(lambda: send(target(free_ports(1)[0])))


def test_an_attempt_that_waited_too_long_for_its_turn_sends_nothing() -> None:
    box = Box()
    with server(box) as port:
        attempt = mail.Attempt(target(port), None, mail.mail_of(target(port), payload()))
        attempt.abandon()
        assert attempt.run() == "abandoned"
    assert box.mails == []


def test_a_route_of_mails_from_its_making_to_its_test(tmp_path: Path) -> None:
    async def work() -> None:
        box = Box()
        with server(box) as port:
            async with running(tmp_path, seeded=False) as kit:
                ann = await kit.person()
                to = target(port).model_dump() | {"user": "console"}
                body = {"name": "ops-mail", "mail": to, "secret": PASSWORD, "enabled": False}
                made = await ann.change("POST", "/api/v1/alerts/routes", json=body)
                assert made.status_code == 201 and PASSWORD not in made.text
                assert made.json()["target"] == f"ops@example.org through 127.0.0.1:{port} (plain)"
                refused = (await ann.change("POST", "/api/v1/alerts/routes/ops-mail/test")).json()
                assert refused["state"] == "failed" and "cannot do what the route asks for" in refused["result"]
                body = {"name": "no-login", "mail": target(port).model_dump(), "enabled": False}
                assert (await ann.change("POST", "/api/v1/alerts/routes", json=body)).status_code == 201
                done = (await ann.change("POST", "/api/v1/alerts/routes/no-login/test")).json()
                assert (done["state"], done["result"]) == ("delivered", "taken")
        assert [one["Subject"] for one in box.mails] == [
            "[Quorumscope] Test of the route no-login, sent by ann. Nothing is wrong."
        ]

    run(work())
