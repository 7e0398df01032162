"""What the commands about brokers ask of control planes: any member's to look, the master's to change.

Invariants: a change is asked once of whoever leads; 75 means that it may have been made, 1 that it was not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import quote, urlencode

from app.commands.control_calls import HTTP_TIMEOUT_S, control_answer, control_state
from app.commands.endings import Exit, Failure, Unheard
from app.commands.targets import Target

NOT_LEADER: Final = 421
HOPS_MAX: Final = 3
SAYS_WITHIN_S: Final = 1.0  # who leads is asked of all at once
CHANGE_WITHIN_S: Final = 30.0  # control planes give up on a broker sooner, and say what is known
REFUSED: Final = (404, 409, 412, 422)
PAGES_MAX: Final = 1000
Json = dict[str, Any]


def urls_of(target: Target) -> Mapping[str, str]:
    """Control planes by member. Raises Failure."""
    if not target.control_urls:
        text = "which control plane? give --node http://HOST:PORT, of any member: brokers are asked through it"
        raise Failure(Exit.USAGE, text)
    return target.control_urls


def asked(target: Target, url: str, resource: str, within_s: float = HTTP_TIMEOUT_S) -> tuple[int, Json]:
    """What is there to look at; without the token where only members name that address. Raises Failure."""
    try:
        return control_answer("GET", url, resource, target.token_for(url), tls=target.control_tls, within_s=within_s)
    except Failure as failure:
        raise with_reason(failure, target, url) from failure


def with_reason(failure: Failure, target: Target, url: str) -> Failure:
    """A refusal says so where it is for want of a token that is held, and was not shown."""
    why = target.not_shown(url)
    return failure if failure.code != Exit.DENIED or why is None else Failure(Exit.DENIED, f"{failure}; {why}")


def path_of(*parts: str, **query: Any) -> str:
    """Of a resource; what is None is left out. Raises Failure for what would name another one."""
    for one in parts:
        if "/" in one or one in ("", ".", ".."):
            raise Failure(Exit.USAGE, f'"{one}" is no name of a topic or group')
    known = {name: value for name, value in query.items() if value is not None}
    path = "/".join(quote(one, safe="") for one in parts)
    return f"{path}?{urlencode(known)}" if known else path


def leader_first(target: Target) -> list[str]:
    """Control planes as they are asked: the leader's, whose broker is master, before those that may lack what was
    stored last or are cut off; who does not say at once what it is comes last."""
    urls = list(urls_of(target).values())
    if len(urls) == 1:
        return urls

    def place(url: str) -> tuple[int, int]:
        try:
            state = control_state(url, None, target.token_for(url), target.control_tls, SAYS_WITHIN_S)
        except Failure:
            return 2, 0
        return (0, -(state.term or 0)) if state.role == "LEADER" else (1, 0)

    with ThreadPoolExecutor(max_workers=len(urls)) as threads:
        places = list(threads.map(place, urls))
    return [url for _, url in sorted(zip(places, urls, strict=True), key=lambda one: one[0])]


def look(target: Target, resource: str, urls: Sequence[str] | None = None) -> Json:
    """Of the first member that answers, of `urls` where they are known. Raises Failure."""
    last = Failure(Exit.UNREACHABLE, "no member answers")
    for url in urls or leader_first(target):
        try:
            status, content = asked(target, url, resource)
        except Failure as failure:
            if failure.code != Exit.UNREACHABLE and target.not_shown(url) is None:
                raise
            last = failure
            continue
        if status < 400:
            return content
        last = failure_of(url, status, content)
        if status in REFUSED:
            break
    raise last


def all_items(target: Target, *parts: str, **query: Any) -> list[Json]:
    """All pages of a list. Raises Failure."""
    found: list[Json] = []
    cursor: str | None = None
    urls = leader_first(target)
    for _ in range(PAGES_MAX):
        page = look(target, path_of(*parts, limit=1000, cursor=cursor, **query), urls)
        found += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    return found


def change(target: Target, method: str, resource: str, body: Json | None = None) -> Json:
    """By whoever leads, whom any member names that is reached. Raises Failure."""
    urls = list(urls_of(target).values())
    url = target.given or urls[0]
    others = [one for one in urls if one != url and target.not_shown(one) is None]
    content: Json = {}
    hops = 0
    while hops < HOPS_MAX:
        try:
            status, content = control_answer(
                method, url, resource, target.token, body, tls=target.control_tls, within_s=CHANGE_WITHIN_S
            )
        except Unheard as nobody:
            if nobody.code != Exit.UNREACHABLE or not others:  # of any other code it left, and may have been made
                raise
            url = others.pop(0)
            continue
        if status < 400:
            return content
        following = content.get("leader_api_url")
        if status != NOT_LEADER or not isinstance(following, str):
            raise failure_of(url, status, content)
        if (why := target.not_shown(following)) is not None:
            raise Failure(Exit.FINDING, f"not changed: {url} does not lead, and {why}")
        url, hops = following, hops + 1
    raise Failure(Exit.UNREACHABLE, f"the leader moves: {content.get('detail')}")


def failure_of(url: str, status: int, content: Json) -> Failure:
    """What a problem means for a command."""
    text = str(content.get("detail") or content.get("title") or status)
    if content.get("outcome") == "unknown":
        return Failure(Exit.UNKNOWN_OUTCOME, f"outcome unknown: {text}")
    if status == 404 and content.get("code") is None and content.get("title") == "Not Found":
        return Failure(Exit.FINDING, f"{url}: this group has no brokers")
    if status in REFUSED:
        return Failure(Exit.FINDING, text)
    return Failure(Exit.UNREACHABLE, f"{url} answered {status}: {text}")
