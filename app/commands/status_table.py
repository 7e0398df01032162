"""What `status` prints for people: a sentence, the members, then each problem with what to do about it. Pure.

On a terminal that is too narrow for all of a row, columns are left out and named, and words are broken between words.
Invariants: unknown is "?", never 0; a command is printed on one line, as it is pasted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.commands.endings import Silence
from app.commands.output import COMMAND, wrapped
from app.commands.standing import AskedMember, StatusProblem, StatusView
from app.health.facts import INFO, capital, join

COLUMNS: Final = (
    ("id", 4), ("role", 9), ("term", 5), ("begin", 9), ("end", 11), ("durable", 11),
    ("committed", 11), ("applied", 11), ("behind", 9), ("flush", 6), ("address", 0),
)  # fmt: skip
COLUMNS_HEAD: Final = {name: name for name, _ in COLUMNS}
LEFT: Final = ("id", "role", "flush", "address")  # where their words begin
LEFT_OUT_FIRST: Final = ("begin", "applied", "flush", "durable", "committed", "address")
Row = dict[str, str]


def number(value: int | None) -> str:
    """A count for people: unknown is "?"."""
    return "?" if value is None else f"{value:,}"


def hangs(member: AskedMember) -> bool:
    """Whether something takes the question and gives no answer, so that nobody knows it to be gone."""
    return member.silence is Silence.NO_WORD


def row_of(member: AskedMember, leader_end_index: int | None) -> Row:
    """One line of the table."""
    state = member.state
    if state is None:
        role = ("(silent)" if hangs(member) else "(down)") if member.reach == "down" else "?"
        if member.metadata is not None and member.metadata.leader_id == member.id:
            role = "LEADER"
        return {name: "?" for name, _ in COLUMNS} | {"id": member.id, "role": role, "address": member.address}
    log = state.marks
    end = log.end_index
    # Members are asked at slightly different moments: one that was asked last is not ahead of its leader.
    behind = None if leader_end_index is None or end is None else max(leader_end_index - end, 0)
    return {
        "id": member.id,
        "role": state.role or "?",
        "term": number(state.term),
        "begin": number(log.begin_index),
        "end": number(end),
        "durable": number(log.durable_index),
        "committed": number(log.committed_index),
        "applied": number(log.applied_index),
        "behind": number(behind),
        "flush": state.flush or "?",
        "address": member.address,
    }


def leader_end_of(summary: StatusView) -> int | None:
    """The leader's end index, as reported; None without a leader, or where it reports none."""
    leader = next((one for one in summary.members if one.id == summary.leader_id), None)
    return leader.state.marks.end_index if leader is not None and leader.state is not None else None


def table_of(summary: StatusView, width: int | None = None) -> list[str]:
    """The lines of `status`; `width`: of the terminal, in characters, None where the output is none."""
    quorum, stands = summary.quorum, quorum_words(summary)
    term = "(term unknown)" if summary.term is None else f"in term {summary.term}"
    leads = f"{summary.leader_id} leads {term}" if summary.leader_id else without_leader(summary)
    who = "members" if quorum.size == len(summary.members) else "voters"
    head = f"group {summary.group}: {leads}; {quorum.answering} of {quorum.size} {who} answer, {stands}"
    end = leader_end_of(summary)
    rows = [(row_of(one, end), why_silent(one)) for one in summary.members]
    rows += [({**row_of(one, end), "role": "NO MEMBER", "behind": ""}, why_silent(one)) for one in summary.others]
    lines = [line for problem in summary.problems for line in lines_of(problem)]
    lines += dict.fromkeys(f"? {one.reason}" for one in summary.unknown)
    table = in_full(rows) if width is None else fitted(rows, width)
    return [*wrapped([head], width), *table, *wrapped(lines, width)]


def quorum_words(summary: StatusView) -> str:
    """Whether enough members hear each other, and hold what is written."""
    quorum = summary.quorum
    if quorum.stands is None:
        return "whether a quorum stands is unknown"
    if not quorum.stands:
        return f"NO QUORUM: {quorum.needed} that hear each other are needed"
    if summary.writes_stopped:
        return f"NO NEW WRITE GETS THROUGH: {summary.writes_stopped}"
    return "the quorum stands"


def why_silent(member: AskedMember) -> str:
    return "" if member.state is not None else member.reason or ""


def in_full(rows: Sequence[tuple[Row, str]]) -> list[str]:
    """All columns, each as wide as in every other answer; why a member is silent stands behind its address."""
    lines = []
    for row, why in [(COLUMNS_HEAD, ""), *rows]:
        cells = (row[name].ljust(width) if name in LEFT else row[name].rjust(width) for name, width in COLUMNS)
        lines.append("  " + "  ".join([*cells, *([why] if why else [])]).rstrip())
    return lines


def fitted(rows: Sequence[tuple[Row, str]], width: int) -> list[str]:
    """As many columns as there is room for; why a member is silent stands below it."""
    every = [COLUMNS_HEAD, *(row for row, _ in rows)]
    widths = {name: max(len(row[name]) for row in every) for name, _ in COLUMNS}
    left_out: list[str] = []
    for name in LEFT_OUT_FIRST:
        if 2 * len(widths) + sum(widths.values()) <= width:
            break
        left_out.append(name)
        del widths[name]
    lines = []
    for row, why in [(COLUMNS_HEAD, ""), *rows]:
        cells = (row[name].ljust(size) if name in LEFT else row[name].rjust(size) for name, size in widths.items())
        lines.append("  " + "  ".join(cells).rstrip())
        lines += wrapped([f"    {why}"], width) if why else []
    note = f"  (no room here for {', '.join(name for name, _ in COLUMNS if name in left_out)}: --json has all)"
    return lines + (wrapped([note], width) if left_out else [])


def without_leader(summary: StatusView) -> str:
    """What is known where no member that answers says that it leads; one that is silent may lead all the same."""
    silent = {one.id for one in summary.members if one.state is None and one.metadata is None}
    reported = {one.state.leader_id for one in summary.members if one.state is not None}
    named = {one.id: one.metadata.leader_id for one in summary.members if one.metadata is not None}
    if claims := sorted(one for one, said in named.items() if one == said):
        return f"{join(claims)} each say that they lead"
    followed = sorted(one for one in reported | set(named.values()) if one in silent)
    if followed:
        return f"the others follow {' and '.join(followed)}, which does not answer"
    return "no member that answers leads" if silent else "no member leads"


def lines_of(problem: StatusProblem) -> list[str]:
    """A problem, what it means, what is at stake, and the lines to run."""
    lines = [f"{'-' if problem.severity == INFO else '!'} {problem.text}"]
    if problem.command is None:
        return [*lines, f"    {problem.next_step}"]
    lines.append(f"    {capital(problem.means, problem.member)}. At stake: {problem.at_stake}.")
    lines.append(f"    {capital(problem.step, problem.member)}:")
    lines += [f"{COMMAND}{line}" for line in (problem.command, problem.curl) if line]
    return [*lines, f"    More: {problem.docs}"] if problem.docs else lines
