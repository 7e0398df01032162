"""How the operations of a control plane end: by the engine's own word, and `unknown` where that did not come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from node.control import leadership, members, repair, restart, trim
from node.control.engine_link import EngineAway, EngineDeclined, EngineRefused, EngineSilent
from node.control.operations import RUNNING, RUNNING_MAX, Operations
from node.control.problems import Problem
from node.control.trail import REFUSED_MAX, REFUSED_WITHIN_S, Refusals
from node.protocol.codes import ResponseCode
from node.views.state import ApplierView, FaultView, LogView, RepairView, StateView
from node.views.transfer import Transfer
from tests.unit.engine_kit import until

Json = dict[str, Any]
CHANGE: Json = {"kind": "remove", "memberId": "n2"}


class Link:
    """An engine's answers, in their order."""

    def __init__(self, *answers: Json | Exception) -> None:
        self.answers, self.asked = list(answers), []  # type: tuple[list[Json | Exception], list[Json]]

    async def json(self, _code: object, fields: Json, _timeout_s: float) -> Json:
        self.asked.append(fields)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def parts_of(link: Link, **snapshots: Any) -> Any:
    timing = SimpleNamespace(leadership_transfer_wait_timeout_ms=500)
    settings = SimpleNamespace(timing=timing)
    known = SimpleNamespace(outdate=lambda: None, **snapshots)
    return SimpleNamespace(link=link, settings=settings, snapshots=known, operations=Operations())


def state(**more: Any) -> StateView:
    return StateView(engine="ok", self_id="n0", **more)


def looks_of(monkeypatch: pytest.MonkeyPatch, module: Any, *found: StateView) -> Iterator[StateView]:
    """What each look sees; no time passes between two."""
    looks = iter(found)

    async def look(*_: object, **__: object) -> StateView:
        return next(looks)

    monkeypatch.setattr(module, "LOOK_S", 0.0)
    monkeypatch.setattr(repair, "look", look)
    return looks


# --- the frame of all of them -----------------------------------------------------------------------------------------
def test_an_operation_that_runs_when_the_control_plane_stops_is_unknown() -> None:
    async def work() -> None:
        operations = Operations()

        async def hangs() -> Json:
            await asyncio.Event().wait()
            raise AssertionError

        operation = operations.start("transfer", None, {}, "", hangs)
        await asyncio.sleep(0)
        assert operation["state"] == RUNNING
        await operations.close()
        assert operation["state"] == "unknown" and "stopped" in operation["problem"]["detail"]

    asyncio.run(work())


def test_so_many_of_a_kind_run_at_a_time_and_the_next_one_is_refused() -> None:
    """Each follows what it began until its end, and a scrub may take hours: there was no bound."""

    async def work() -> None:
        operations, ends = Operations(), asyncio.Event()

        async def scrub() -> Json:
            await ends.wait()
            return {"state": "done"}

        begun = [operations.start("scrub", f"key {at}", {}, "", scrub) for at in range(RUNNING_MAX)]
        with pytest.raises(Problem, match="Nothing was started") as refused:
            operations.start("scrub", "one more", {}, "", scrub)
        assert refused.value.status == 503 and refused.value.headers["retry-after"]
        assert operations.start("scrub", "key 3", {}, "", scrub) is begun[3], "a repeated call starts nothing"
        assert operations.start("leadership_transfer", None, {}, "", scrub)["state"] == RUNNING, "of another kind"
        ends.set()
        await until(lambda: all(one["state"] == "done" for one in begun))
        assert operations.start("scrub", "one more", {}, "", scrub)["state"] == RUNNING
        await operations.close()

    asyncio.run(work())


def test_those_that_ended_are_kept_up_to_a_bound_and_their_keys_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.control.operations.KEPT_MAX", 3)

    async def work() -> None:
        operations = Operations()

        async def trim() -> Json:
            return {"state": "done"}

        for at in range(10):
            begun = operations.start("trim", f"key {at}", {}, "", trim)
            await until(lambda begun=begun: begun["state"] == "done")
        assert len(operations.kept) == len(operations.by_key) == 3
        assert operations.earlier("trim", "key 9", {}) is not None and operations.earlier("trim", "key 6", {}) is None
        await operations.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (EngineAway("refused"), "failed"),  # it was asked nothing
        (EngineSilent("no answer to the greeting", sent=False), "failed"),
        (EngineSilent("no answer in time"), "unknown"),
        (EngineRefused("remoting code 1"), "unknown"),
        (EngineDeclined("request type 52008 not supported"), "failed"),
    ],
)
def test_only_what_was_not_asked_has_failed(error: Exception, ends: str) -> None:
    async def work() -> None:
        operations = Operations()
        works = (
            lambda: leadership.carry_out(parts_of(Link(error)), Transfer()),
            lambda: members.carry_out(parts_of(Link(error)), CHANGE),
            lambda: restart.another_machine(parts_of(Link(error))),
            lambda: repair.follow(parts_of(Link(error)), {}),
        )
        begun = [operations.start("any", None, {}, "", one) for one in works]
        await until(lambda: all(one["state"] != RUNNING for one in begun))
        assert {one["state"] for one in begun} == {ends}
        await operations.close()

    asyncio.run(work())


@pytest.mark.parametrize("error", [EngineAway("refused"), EngineSilent("no answer to the greeting", sent=False)])
def test_what_was_begun_has_not_failed_because_a_later_question_was_not_sent(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A scrub and a repair go on in the engine; of a trim a part has gone."""

    async def ask(*_: object, **__: object) -> StateView:
        raise error

    monkeypatch.setattr(repair, "LOOK_S", 0.0)
    body = trim.Trim(through_index=99)

    async def work() -> None:
        operations = Operations()
        works = (
            lambda: repair.follow_scrub(parts_of(Link({"code": 200, "passNumber": 3}), ask=ask), {}),
            lambda: repair.follow(parts_of(Link({"code": 200}), ask=ask), {}),
            lambda: trim.go_on(parts_of(Link(removed(3, []), error)), body, {}),
        )
        begun = [operations.start("any", None, {}, "", one) for one in works]
        await until(lambda: all(one["state"] != RUNNING for one in begun))
        assert [(one["state"], one["problem"]["detail"]) for one in begun] == [("unknown", str(error))] * 3
        await operations.close()

    asyncio.run(work())


REFUSALS: list[Json] = [  # what an engine answers before it begins anything
    {"code": 402, "detail": "a client without a right to operate"},
    {"code": 414, "detail": "the trail cannot be written: no space left on device"},
]


@pytest.mark.parametrize("answer", REFUSALS)
def test_what_the_engine_refused_has_failed_with_its_reason(answer: Json) -> None:
    """Nothing was begun, so it is no lost answer."""

    async def work() -> None:
        operations = Operations()
        body = trim.Trim(through_index=99)
        works = (
            lambda: repair.follow_scrub(parts_of(Link(answer)), {}),
            lambda: repair.follow(parts_of(Link(answer)), {}),
            lambda: trim.go_on(parts_of(Link(answer)), body, {}),
            lambda: restart.another_machine(parts_of(Link(answer))),
        )
        begun = [operations.start("any", None, {}, "", one) for one in works]
        await until(lambda: all(one["state"] != RUNNING for one in begun))
        ended = [(one["state"], one["problem"]) for one in begun]
        problem = {"title": "The engine refused", "detail": answer["detail"], "code": answer["code"]}
        assert ended == [("failed", problem)] * 4
        await operations.close()

    asyncio.run(work())


@pytest.mark.parametrize("answer", [{}, {"code": "no"}, {"code": 500, "detail": "an error that was not expected"}])
def test_what_is_no_refusal_leaves_the_outcome_unknown(answer: Json) -> None:
    async def work() -> None:
        operations = Operations()
        operation = operations.start("scrub", None, {}, "", lambda: repair.follow_scrub(parts_of(Link(answer)), {}))
        await until(lambda: operation["state"] != RUNNING)
        assert operation["state"] == "unknown"
        await operations.close()

    asyncio.run(work())


def test_a_trim_that_is_refused_in_a_later_round_says_what_went() -> None:
    link = Link(removed(3, [NEED]), REFUSALS[1])
    ended = asyncio.run(trim.go_on(parts_of(link), trim.Trim(through_index=99), {}))
    assert (ended["state"], ended["problem"]["detail"]) == ("failed", REFUSALS[1]["detail"])
    assert (ended["outcome"]["removed_files"], ended["outcome"]["kept_by"]) == (3, [NEED])


def test_a_dry_run_and_a_release_that_are_refused_say_so() -> None:
    """It was "the engine does not answer", and 204 for a pin that was still there."""

    async def get(*_: object) -> StateView:
        return state()

    def refused(work: Any) -> tuple[int, str]:
        with pytest.raises(Problem) as problem:
            asyncio.run(work)
        return problem.value.status, problem.value.detail

    expected = 409, REFUSALS[0]["detail"]
    assert refused(trim.would(parts_of(Link(REFUSALS[0])), trim.Trim(through_index=9))) == expected
    assert refused(trim.release(parts_of(Link(REFUSALS[0]), get_late=get), "audit")) == expected


# --- transfers and members --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("term", [None, 0, 7])
def test_the_leader_itself_is_told_in_which_term_it_is_to_be(term: int | None) -> None:
    """The control plane's look may be older than the term: the engine decides."""
    link = Link({"code": 200, "leaderId": "n1", "term": 8})
    ended = asyncio.run(leadership.carry_out(parts_of(link), Transfer(to="n1", if_term=term)))
    assert ended["state"] == "done" and link.asked[0].get("ifTerm") == term


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        (ResponseCode.SUCCESS, "done"),
        (ResponseCode.TIMEOUT, "unknown"),  # the order has left, and nobody is heard of that leads
        (ResponseCode.TAKE_LEADERSHIP_FAILED, "failed"),
        (ResponseCode.INCONSISTENT_TERM, "failed"),
    ],
)
def test_a_transfer_has_failed_only_where_leadership_has_not_moved(code: ResponseCode, ends: str) -> None:
    """A leader that had stepped down for the one it ordered to lead, and heard of nobody in time, had "failed"."""
    link = Link({"code": int(code), "leaderId": None, "term": 9, "detail": "nobody is known to lead after term 9"})
    ended = asyncio.run(leadership.carry_out(parts_of(link), Transfer(to="n1")))
    assert ended["state"] == ends


@pytest.mark.parametrize(
    ("answer", "ends"),
    [
        ({"code": 200, "index": 4, "term": 2, "leaderId": "n0"}, "done"),
        ({"code": 501, "appended": "unknown", "index": 4, "detail": "no quorum"}, "unknown"),
        ({"code": 501, "appended": "not_appended", "detail": "another change"}, "failed"),
    ],
)
def test_a_change_of_members_ends_as_its_entry_did(answer: Json, ends: str) -> None:
    ended = asyncio.run(members.carry_out(parts_of(Link(answer)), CHANGE))
    assert ended["state"] == ends


# --- repairs ----------------------------------------------------------------------------------------------------------
def damaged(count: int, hopeless: int) -> StateView:
    faults = tuple(FaultView(first_index=at, last_index=at) for at in range(count))
    return state(faults=faults, repair=RepairView(hopeless=hopeless))


def test_a_repair_goes_on_while_anything_can_be_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One range that nobody can give is no end of the others."""
    left = looks_of(monkeypatch, repair, damaged(3, 1), damaged(2, 1), damaged(1, 1))
    ended = asyncio.run(repair.follow(parts_of(Link({"code": 200})), {}))
    assert ended["state"] == "failed" and "No member" in ended["problem"]["title"]
    assert next(left, None) is None


def test_what_is_not_mended_in_time_is_not_called_done(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_of(monkeypatch, repair, damaged(2, 0))
    monkeypatch.setattr(repair, "FOLLOWED_S", -1.0)
    ended = asyncio.run(repair.follow(parts_of(Link({"code": 200})), {}))
    assert ended["state"] == "failed" and "goes on by itself" in ended["problem"]["detail"]


# --- trims ------------------------------------------------------------------------------------------------------------
def removed(files: int, kept_by: list[Json], detail: str = "") -> Json:
    numbers = {"removedFiles": files, "removedBytes": 100 * files, "beginIndex": 10 * files}
    return {"code": 200, **numbers, "keptBy": kept_by, "detail": detail}


NEED: Json = {"owner": "audit", "from_index": 40, "why": "has pinned entries from 40 on"}


def test_a_trim_of_several_rounds_counts_all_and_says_who_kept_the_rest() -> None:
    link = Link(removed(3, [NEED]), removed(2, []), removed(0, []))
    ended = asyncio.run(trim.go_on(parts_of(link), trim.Trim(through_index=99), {}))
    assert ended["state"] == "done"
    assert (ended["outcome"]["removed_files"], ended["outcome"]["kept_by"]) == (5, [NEED])


@pytest.mark.parametrize("before", [0, 3])
def test_a_trim_that_could_not_go_on_has_failed_also_where_some_of_it_went(before: int) -> None:
    rounds = [removed(before, [])] if before else []
    link = Link(*rounds, removed(0, [], "entry 30 is damaged: it has to be mended first"))
    ended = asyncio.run(trim.go_on(parts_of(link), trim.Trim(through_index=99), {}))
    assert ended["state"] == "failed" and "damaged" in ended["problem"]["detail"]
    assert ended["outcome"]["removed_files"] == before


def test_a_trim_that_is_cancelled_ends_before_its_next_round_and_says_what_went() -> None:
    class Link_(Link):
        async def json(self, _code: object, fields: Json, _timeout_s: float) -> Json:
            parts.operations.cancel(operation["id"])
            return await super().json(_code, fields, _timeout_s)

    async def work() -> None:
        nonlocal operation
        operation = parts.operations.start("trim", None, {}, "", lambda: trim.go_on(parts, body, operation))
        await until(lambda: operation["state"] != RUNNING)
        assert (operation["state"], operation["outcome"]["removed_files"], len(link.asked)) == ("cancelled", 3, 1)
        with pytest.raises(Problem, match="cancelled already"):
            parts.operations.cancel(operation["id"])
        assert not parts.operations.unwanted
        await parts.operations.close()

    operation: Json = {}
    body, link = trim.Trim(through_index=99), Link_(removed(3, []), removed(2, []))
    parts = parts_of(link)
    asyncio.run(work())


@pytest.mark.parametrize("kind", ["leadership_transfer", "scrub", "repair", "members", "snapshot", "restart"])
def test_what_the_engine_was_asked_for_at_once_is_not_cancelled(kind: str) -> None:
    async def work() -> None:
        operations, ending = Operations(), asyncio.Event()

        async def last() -> Json:
            await ending.wait()
            return {"state": "done"}

        begun = operations.start(kind, None, {}, "", last)
        with pytest.raises(Problem) as refused:
            operations.cancel(begun["id"])
        assert refused.value.status == 409 and f"({kind})" in refused.value.detail
        ending.set()
        await operations.close()

    asyncio.run(work())


# --- restarts ---------------------------------------------------------------------------------------------------------
def test_another_engine_is_one_of_another_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is to end may answer for a while: it hands leadership over first."""
    looks = [state(boot_id="old"), EngineAway("refused"), state(boot_id="new")]

    async def ask(*_: object, **__: object) -> StateView:
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(restart, "LOOK_S", 0.0)
    monkeypatch.setattr(restart, "ask_for_another_engine", lambda: True)
    ended = asyncio.run(restart.another_engine(parts_of(Link(), ask=ask), "old"))
    assert (ended["state"], ended["outcome"]["boot_id"]) == ("done", "new") and not looks


def test_a_state_machine_goes_on_once_it_has_applied_what_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [state(log=LogView(applied_index=one, committed_index=9)) for one in (None, 4, 9)]

    async def ask(*_: object, **__: object) -> StateView:
        return looks.pop(0)

    monkeypatch.setattr(restart, "LOOK_S", 0.0)
    link = Link({"code": 200, "committedIndex": 9})
    ended = asyncio.run(restart.another_machine(parts_of(link, ask=ask)))
    assert (ended["state"], ended["outcome"]["applied_index"]) == ("done", 9) and not looks


def test_a_state_machine_that_does_not_go_on_is_said_with_what_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: object, **__: object) -> StateView:
        return state(log=LogView(applied_index=4, committed_index=9), applier=ApplierView(last_error="another entry 4"))

    times = iter(range(0, 10**6, 30))
    monkeypatch.setattr(restart, "time", SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(restart, "LOOK_S", 0.0)
    ended = asyncio.run(restart.another_machine(parts_of(Link({"code": 200, "committedIndex": 9}), ask=ask)))
    text = "It was ended, and has not applied entry 9 within 60 s: another entry 4."
    assert (ended["state"], ended["problem"]["detail"]) == ("failed", text)


@pytest.mark.parametrize(("applied", "is_refused"), [(8, False), (9, True), (None, False)])
def test_a_state_machine_that_goes_on_is_ended_with_force_only(applied: int | None, is_refused: bool) -> None:
    seen = state(log=LogView(applied_index=applied, committed_index=9))

    def refused(*, force: bool) -> bool:
        try:
            restart.check_machine(seen, force=force)
        except Exception as problem:
            assert getattr(problem, "status", None) == 409
            return True
        return False

    assert refused(force=False) == is_refused and not refused(force=True)


# --- the trail --------------------------------------------------------------------------------------------------------
def test_what_is_left_out_of_the_trail_is_counted_until_a_row_says_so() -> None:
    refusals = Refusals()
    assert [refusals.admits(0.0) for _ in range(REFUSED_MAX + 3)] == [True] * REFUSED_MAX + [False] * 3
    assert refusals.left_out == 3
    assert refusals.admits(REFUSED_WITHIN_S) and refusals.left_out == 3, "the next row is to say it"
