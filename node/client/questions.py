"""What is asked of one member: its views, its word on who leads, an operator's actions.

Invariants: whoever asks one member wants that one's answer, and waits for it as long as it said: over a connection of
its own. What waits at the leader's ends as lost where that one falls silent and another leads. A change that was sent
and not answered may have been made: it ends as `OutcomeUnknown`, and never as `Unreachable`, which says it was not.
"""

from __future__ import annotations

from typing import Any, Final

from node.client.errors import DENIED, Closed, Denied, LedgerError, OutcomeUnknown, Unreachable, Unsupported
from node.client.link import Lost, MemberLink, NotSupported, RemotingError
from node.protocol.codes import RemotingCode, RequestCode
from node.transport.bodies import BodyError, Fields

LOOK_FIRST: Final = "; look whether it was done before you repeat it"


class OwnLinks:
    """One more link to each member that is asked, whoever leads; one per client."""

    def __init__(self) -> None:
        self._links: dict[str, MemberLink] = {}
        self._closed = False

    def beside(self, link: MemberLink) -> MemberLink:
        """The other one to the same member. Raises Closed."""
        if self._closed:
            raise Closed("the client is closed")
        known = self._links.get(link.member_id)
        if known is None or (known.address != link.address and not (known.open or known.dialling)):
            if known is not None:
                known.close()  # the member has moved
            known = self._links[link.member_id] = link.another()
        return known

    def close(self) -> None:
        """For good: what waits ends as lost."""
        self._closed = True
        for link in self._links.values():
            link.close()


async def ask(
    link: MemberLink, code: RequestCode, fields: dict[str, Any], within_s: float, *, changes: bool = False
) -> dict[str, Any]:
    """The member's answer, as it came. Raises as `answer_to`."""
    return dict((await answer_to(link, code, fields, within_s, changes=changes)).values)


async def answer_to(
    link: MemberLink, code: RequestCode, fields: dict[str, Any], within_s: float, *, changes: bool = False,
    redial: bool = True,
) -> Fields:  # fmt: skip
    """The member's answer. `changes`: the request changes something; `redial` as in `MemberLink.request`. Raises
    Unreachable, Unsupported, Denied, LedgerError, and OutcomeUnknown where a change may have been made."""
    try:
        answer = await link.ask(code, fields, within_s, redial=redial)
        said = answer.code() if "code" in answer.values else None
        text = "" if said is None else f"{link.member_id}: {answer.optional_text('detail') or said.name}"
    except (OSError, TimeoutError) as error:
        sent = not isinstance(error, Lost) or error.sent
        where = f"{link.member_id} at {link.address}"
        why = str(error) or "no answer in time"
        text = why if why.startswith(where) else f"{where}: {why}"
        raise (OutcomeUnknown(text + LOOK_FIRST) if changes and sent else Unreachable(text)) from error
    except NotSupported as error:
        link.plain = link.plain or code is RequestCode.INTROSPECT  # which every release of ours knows
        raise Unsupported(str(error)) from error
    except (RemotingError, BodyError) as error:  # it failed over the request, wherever in it; busy: it did not begin
        begun = not isinstance(error, RemotingError) or error.code != RemotingCode.SYSTEM_BUSY
        raise (OutcomeUnknown(str(error) + LOOK_FIRST) if changes and begun else LedgerError(str(error))) from error
    if said in DENIED:
        raise Denied(text)
    if code is RequestCode.INTROSPECT and said is not None:
        raise LedgerError(text)
    return answer
