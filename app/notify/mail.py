"""A message as a mail: one attempt, with the standard library's SMTP client in a thread of its own.

Invariants: with `starttls` and `tls` the server's certificate is checked, and without TLS there is no login; a server
that does not offer STARTTLS gets nothing; an attempt ends within ATTEMPT_S, whatever the server does, because its
connection is closed then; at most THREADS wait for servers at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import smtplib
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from email import policy
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Final

from app.notify.message import line, subject_of, text_of
from app.notify.routes import MailTarget
from app.notify.webhook import NotDelivered, authorities
from app.times import parse_time

Json = dict[str, Any]
ATTEMPT_S: Final = 20.0
SOCKET_S: Final = 10.0
THREADS: Final = 4
REASON_CHARS_MAX: Final = 200
READY: Final = 220
# RFC 5322 allows so long a line; folded sooner, a subject may begin with a space in the reader's list.
UNFOLDED: Final = policy.SMTP.clone(max_line_length=998)
pool: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="mail")


async def send(target: MailTarget, password: str | None, payload: Json, *, attempt_s: float = ATTEMPT_S) -> str:
    """Delivers to the server, and returns what it answered in a few words. Raises NotDelivered."""
    attempt = Attempt(target, password, mail_of(target, payload))
    work = asyncio.get_running_loop().run_in_executor(pool, attempt.run)
    try:
        async with asyncio.timeout(attempt_s):
            return await asyncio.shield(work)
    except TimeoutError:
        raise NotDelivered(f"no end within {attempt_s:.0f} s") from None
    except smtplib.SMTPException as error:
        raise NotDelivered(reason(error)) from None
    except (OSError, ValueError) as error:
        raise NotDelivered(f"cannot be reached: {line(str(error) or type(error).__name__, REASON_CHARS_MAX)}") from None
    finally:
        attempt.abandon()  # of one that has ended there is nothing to close
        work.add_done_callback(lambda done: done.cancelled() or done.exception())


def mail_of(target: MailTarget, payload: Json) -> EmailMessage:
    mail = EmailMessage(policy=UNFOLDED)
    domain = target.sender.rpartition("@")[2]
    mail["Subject"] = subject_of(payload)
    mail["From"] = target.sender
    mail["To"] = ", ".join(target.recipients)
    mail["Date"] = format_datetime(parse_time(payload["at"]))
    mail["Message-ID"] = f"<{payload['id']}@{domain}>"
    # What belongs to one problem stands together in a mail program.
    mail["References"] = f"<{payload['thread']}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Quorumscope-Id"] = payload["id"]
    mail["X-Quorumscope-Kind"] = payload["kind"]
    mail.set_content(text_of(payload))
    return mail


class Attempt:
    """Runs in a thread; `abandon` closes its connection from outside, which ends whatever it waits for."""

    def __init__(self, target: MailTarget, password: str | None, mail: EmailMessage) -> None:
        self.target, self.password, self.mail = target, password, mail
        self.smtp: smtplib.SMTP | None = None
        self.abandoned = False
        self.lock = threading.Lock()

    def run(self) -> str:
        target = self.target
        smtp: smtplib.SMTP
        if target.security == "tls":
            smtp = smtplib.SMTP_SSL(timeout=SOCKET_S, context=authorities())
        else:
            smtp = smtplib.SMTP(timeout=SOCKET_S)
        with self.lock:
            if self.abandoned:  # it waited for a thread until nobody wants it any more
                return "abandoned"
            self.smtp = smtp
        try:
            smtp._host = target.host  # type: ignore[attr-defined] # the name that the certificate must carry
            code, answer = smtp.connect(target.host, target.port)
            if self.abandoned:  # while it had no connection yet that could be closed
                return "abandoned"
            if code != READY:
                raise smtplib.SMTPConnectError(code, answer)
            if target.security == "starttls":
                smtp.starttls(context=authorities())
            if target.user is not None:
                smtp.login(target.user, self.password or "")
            refused = smtp.send_message(self.mail, target.sender, target.recipients)
            with contextlib.suppress(smtplib.SMTPException, OSError):
                smtp.quit()  # the server has taken the message already, however it says good-bye
        finally:
            smtp.close()
        return "taken" if not refused else f"taken, but refused for {', '.join(sorted(refused))}"

    def abandon(self) -> None:
        with self.lock:
            self.abandoned = True
            sock = self.smtp.sock if self.smtp is not None else None
        if sock is not None:
            with contextlib.suppress(OSError, ValueError):  # it is closed already
                sock.shutdown(socket.SHUT_RDWR)


def reason(error: smtplib.SMTPException) -> str:
    """What the server said, without the password that it may repeat."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        answers = "; ".join(f"{who}: {code} {plain(text)}" for who, (code, text) in sorted(error.recipients.items()))
        return line(f"no recipient was taken: {answers}", REASON_CHARS_MAX)
    if isinstance(error, smtplib.SMTPAuthenticationError):
        return f"the login was refused: answered {error.smtp_code}"
    if isinstance(error, smtplib.SMTPResponseException):
        return line(f"answered {error.smtp_code} {plain(error.smtp_error)}", REASON_CHARS_MAX)
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return line(f"the server cannot do what the route asks for: {error}", REASON_CHARS_MAX)
    return line(str(error) or type(error).__name__, REASON_CHARS_MAX)


def plain(text: bytes | str) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text
