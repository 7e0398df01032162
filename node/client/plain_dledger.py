"""A client's requests in DLedger's own JSON form, for members that answer remoting code 3 to ours (FORMATS 1 and 2).

The original takes one entry an APPEND and gives one a GET. Its GET looks neither at the commit index nor at whether the
answering member still leads, and METADATA tells no term. Invariants: "not appended" is said of a refusal only where the
member says that it gave no index; a transfer is not sent without the three arguments that make it, of which one says
that its caller accepts what a first leadership does there (FORMATS 6.1).
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any, Final

from node.client.errors import LedgerError, Refused
from node.client.link import MemberLink
from node.protocol.codes import NOT_APPENDED, RequestCode, ResponseCode
from node.protocol.entry import Entry
from node.transport.bodies import BodyError, Fields
from node.transport.slab_frames import AppendAnswer, AppendedByte

INDEX_MAX: Final = (1 << 63) - 1
HAZARD: Final = (
    "this is a plain DLedger group: unless {to} has led since its process started, as soon as it leads it wipes its"
    " followers, from the index on at which it then stood, committed entries among them; that can be index 0, and"
    " nobody here has seen {to} lead"
)


async def append_one(link: MemberLink, body: bytes, within_s: float) -> AppendAnswer:
    """How an APPEND of one entry ended. Raises as `MemberLink.ask`."""
    fields = {"body": base64.b64encode(body).decode()}
    answer = await link.ask(RequestCode.APPEND, fields, within_s)
    code, index, term = answer.code(), answer.number("index"), answer.number("term")
    if code is ResponseCode.SUCCESS:
        if index < 0:
            raise BodyError("an append that succeeded names no index")
        return AppendAnswer(code, index, index, term, AppendedByte.YES)
    refused = code in NOT_APPENDED and index < 0
    appended = AppendedByte.NOT_APPENDED if refused else AppendedByte.UNKNOWN
    return AppendAnswer(code, index, index, term, appended, answer.text("leaderId"))


async def get_one(link: MemberLink, index: int, within_s: float) -> tuple[ResponseCode, Entry | None]:
    """What a GET of one entry says; the entry with SUCCESS only. Raises as `MemberLink.ask`."""
    answer = await link.ask(RequestCode.GET, {"beginIndex": index, "maxSize": 0}, within_s)
    if answer.code() is not ResponseCode.SUCCESS:
        return answer.code(), None
    entries = answer.items("entries")
    if len(entries) != 1 or not isinstance(entries[0], dict):
        raise BodyError(f"{len(entries)} entries for one index")
    fields = Fields(entries[0])
    body = fields.blob("body")
    if fields.number("index") != index or body is None:
        raise BodyError(f"entry {fields.number('index')} for index {index}")
    return ResponseCode.SUCCESS, Entry(
        fields.number("magic"), index, fields.number("term"), fields.number("pos"), body, fields.number("channel", 0)
    )


async def find_end(get: Callable[[int], Awaitable[ResponseCode]]) -> int:
    """The highest index that GET does not call out of range, -1 for none: nothing there tells it. A GET per bit or two.

    Raises LedgerError for an answer that says neither.
    """

    async def is_there(index: int) -> bool:
        code = await get(index)
        if code in (ResponseCode.SUCCESS, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN):
            return True
        if code is ResponseCode.INDEX_OUT_OF_RANGE:
            return False
        raise LedgerError(f"GET of index {index} is answered with {code.value} {code.name}")

    held, beyond = -1, 0
    while await is_there(beyond):
        held, beyond = beyond, min(2 * beyond + 1, INDEX_MAX)
        if held == INDEX_MAX:
            raise LedgerError("a log without an end")
    while beyond - held > 1:
        middle = (held + beyond) // 2
        if await is_there(middle):
            held = middle
        else:
            beyond = middle
    return held


def transfer_fields(leader_id: str, to: str | None, if_term: int | None, accept_data_loss: bool) -> dict[str, Any]:
    """A LEADERSHIP_TRANSFER as the original's leader takes it. Raises Refused."""
    if to is None:
        raise Refused("a plain DLedger group does not choose the next leader: name a member", missing="to")
    if not accept_data_loss:
        raise Refused(HAZARD.format(to=to), missing="accept_data_loss")
    if if_term is None:
        raise Refused("a plain DLedger has to be given its present term, and does not report it", missing="if_term")
    return {"transferId": leader_id, "transfereeId": to, "term": if_term, "takeLeadershipLedgerIndex": 0}
