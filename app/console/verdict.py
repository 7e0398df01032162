"""THE SENTENCE that every page begins with: the worst problem, its cause, since when, whether the quorum stands."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from app.console.problems import INFO, spell, time_of, worst
from app.db.base import parse_time

Json = dict[str, Any]


def conclude(view: Json) -> None:
    """Fills `severity` and `sentence` from `problems`."""
    view["severity"] = worst(view["problems"])
    view["sentence"] = sentence(view)


def sentence(view: Json) -> Json:
    pressing = [one for one in view["problems"] if one["severity"] != INFO]
    notices = [one for one in view["problems"] if one["severity"] == INFO]
    if pressing:
        headline = pressing[0]["text"]
        parts = [quorum_phrase(view["quorum"])]
        if len(pressing) > 1:
            parts.append(f"{len(pressing) - 1} more problem{'s' if len(pressing) > 2 else ''}.")
    else:
        size = view["quorum"]["size"]
        headline = "The only replica is in step." if size == 1 else f"All {size} replicas are in step."
        parts = [leader_phrase(view), quorum_phrase(view["quorum"])]
    parts += [capital(one["text"]) for one in notices]
    return {"headline": headline, "rest": " ".join(part for part in parts if part)}


def leader_phrase(view: Json) -> str:
    since, now = time_of(view["leader_since"]), parse_time(view["as_of"])
    held = f" for {spell(seconds(since, now))}" if since is not None else ""
    return f"{view['leader_id']} leads term {view['term']}{held}." if view["leader_id"] else ""


def seconds(since: datetime, now: datetime) -> float:
    return (now - since).total_seconds()


def quorum_phrase(quorum: Json) -> str:
    counted = f"{quorum['standing']} of {quorum['size']} answer, {quorum['needed']} needed"
    if quorum["stands"] is None:
        return f"Whether the quorum stands is unknown ({counted})."
    if not quorum["stands"]:
        return f"The quorum does not stand ({counted})."
    if quorum["standing"] == quorum["needed"] < quorum["size"]:
        return f"Quorum stands, but one more failure ends it ({counted})."
    return f"Quorum stands ({counted})."


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
