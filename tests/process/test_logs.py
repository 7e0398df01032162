"""Every kind of fault on real processes, told by the members' logs alone: what happened, in which order, and why."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from node.client import LedgerClient, LedgerError
from tests.process.chaos_disk import QuotaDisk
from tests.process.chaos_faults import Faults
from tests.process.chaos_nodes import DATA_FILE_BYTES, GROUP, Member, make_members
from tests.process.chaos_plan import BROKER_KINDS, KINDS, Step
from tests.process.net import CLIENTS
from tests.process.net_proxy import ProxyNetwork
from tests.process.story import WITHIN_S, Line, Story, said

IDS = ("n0", "n1", "n2")
SMALL = "n1"
LONG_S = 4.0  # longer than any election time-out: what it does to a leader has to be seen by the others
READY_WITHIN_S = 60.0

pytestmark = [pytest.mark.process, pytest.mark.slow]


class Stage:
    """A group that is appended to all the time, and what its members' logs say."""

    def __init__(self, members: dict[str, Member], faults: Faults, operator: LedgerClient) -> None:
        self.members, self.faults, self.operator = members, faults, operator
        self.said: list[str] = []
        self.story = Story(member.log for member in members.values())
        self.body = b"x" * 500
        self.full_answers = 0

    async def feed(self, client: LedgerClient) -> None:
        while True:
            try:
                await client.append(self.body)
            except LedgerError as error:
                self.full_answers += "DISK_FULL" in f"{error!r} {error}"
            await asyncio.sleep(0.02)

    async def settle(self) -> None:
        """Until one leads whom all follow as voters, in APPEND."""
        for _ in range(int(READY_WITHIN_S / 0.2)):
            with contextlib.suppress(LedgerError):
                states = [await self.operator.state(one) for one in IDS]
                leader = await self.operator.leader()
                peers = (await self.operator.introspect(leader, "dispatchers"))["items"]
                follow = all(state["leader_id"] == leader and state["voter_state"] == "VOTER" for state in states)
                if follow and [one["state"] for one in peers] == ["APPEND"] * 2:
                    return
            await asyncio.sleep(0.2)
        raise AssertionError("the group does not settle")

    async def nobody_is_late(self) -> None:
        """Until no peer counts as slow from an earlier fault: what is reported is not reported again while it lasts."""
        ever = Story(member.log for member in self.members.values())
        deadline = time.monotonic() + WITHIN_S
        while late := still_late(ever.lines()):
            assert time.monotonic() < deadline, f"still reported as slow: {late}"
            await asyncio.sleep(0.2)

    async def breaks(self, kind: str, target: str = "leader", for_s: float = 0.0) -> str:
        """Does it from a settled group on; to whom."""
        await self.settle()
        self.said.clear()
        self.story.begin()
        await self.faults.run(Step(0.0, kind, target, for_s))
        assert self.faults.done[kind], self.said
        return self.said[0].partition(":")[0]


def still_late(lines: Iterable[Line]) -> set[tuple[str, str]]:
    """Which leader has reported which peer as slow, and not yet as in time again."""
    late: set[tuple[str, str]] = set()
    for line in lines:
        pair = (line["member"], line.get("peer", ""))
        if line["event"] == "peer_slow":
            late.add(pair)
        elif line["event"] == "peer_in_time":
            late.discard(pair)
        elif line["event"] in ("role", "started"):
            late = {(member, peer) for member, peer in late if member != line["member"]}
    return late


@asynccontextmanager
async def stage(directory: Path, *, brokers: bool = False) -> AsyncIterator[Stage]:
    network = ProxyNetwork()
    await network.start(IDS)
    token = directory / "token"
    token.touch(0o600)
    token.write_text(secrets.token_hex(16))
    members = make_members(IDS, directory, network, token, ["node.log_format=json"], brokers=brokers)
    disk = None if brokers else QuotaDisk(DATA_FILE_BYTES, lambda: members[SMALL].pid)
    peers = network.peers_of(CLIENTS)
    operator = LedgerClient(peers, group=GROUP, deadline_s=5.0, token=token.read_text())
    client = LedgerClient(peers, group=GROUP, deadline_s=5.0)
    made: list[Stage] = []
    faults = Faults(
        members, network, SMALL, disk, operator, lambda: made[0].full_answers, 1, lambda line: made[0].said.append(line)
    )
    made.append(Stage(members, faults, operator))
    feeding = asyncio.create_task(made[0].feed(client))
    try:
        await asyncio.gather(*(member.start() for member in members.values()))
        yield made[0]
        await faults.mend()
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await asyncio.gather(*(member.kill() for member in members.values()))
        await client.close()
        await operator.close()
        await network.stop()


def line_of(who: Callable[[str], bool], event: str, *words: str, **fields: object) -> Callable[[Line], bool]:
    looked_for = said(event, *words, **fields)
    return lambda line: who(line["member"]) and looked_for(line)


async def another_leads(stage: Stage, gone: str, why: str) -> str:
    """Somebody else saw that the leader was gone, why, campaigned, got a majority's votes, and led."""

    def others(one: str) -> bool:
        return one != gone

    found = await stage.story.reported(
        line_of(others, "role", gone, why, role="CANDIDATE"),
        line_of(others, "term", "own campaign"),
        line_of(others, "vote"),
        line_of(others, "role", "elected", role="LEADER"),
    )
    elected = found[-1]
    winner = str(elected["member"])
    assert set(elected["votes"].split(", ")) >= {winner} and len(elected["votes"].split(", ")) >= 2
    (campaign,) = stage.story.tells(said("term", "own campaign", member=winner, term=elected["term"]))
    assert set(campaign["pre_votes"].split(", ")) == set(IDS) - {gone}
    await stage.story.reported(said("vote", candidate=winner, term=elected["term"]))
    return winner


async def kill_engine(stage: Stage) -> None:
    gone = await stage.breaks("kill_engine")
    winner = await another_leads(stage, gone, "closed")
    await stage.story.reported(said("peer_lost", member=winner, peer=gone), said("role", member=winner, role="LEADER"))
    await stage.story.reported(
        said("engine_ended", "killed by signal 9", "started again", member=gone, process="supervisor"),
        said("started", "the log holds", member=gone, voter_state="VOTER"),
        said("leader", member=gone, leader=winner),
    )


async def kill_node(stage: Stage) -> None:
    gone = await stage.breaks("kill_node", for_s=2.0)
    winner = await another_leads(stage, gone, "closed")
    await stage.story.reported(
        said("peer_lost", member=winner, peer=gone),
        said("peer_unreachable", member=winner, peer=gone),
        said("started", "the log holds", member=gone),
        said("peer_connected", member=winner, peer=gone),
        said("dispatcher", member=winner, peer=gone, state="APPEND"),
    )


async def kill_all(stage: Stage) -> None:
    await stage.breaks("kill_all", "all", 1.0)
    for one in IDS:
        await stage.story.reported(said("started", "the log holds", member=one))
    await stage.story.reported(said("role", "elected", role="LEADER"), said("leader"))


async def stop_node(stage: Stage) -> None:
    gone = await stage.breaks("stop_node", for_s=2.0)
    (elected,) = await stage.story.reported(line_of(lambda one: one != gone, "role", "elected", role="LEADER"))
    winner = elected["member"]
    await stage.story.reported(
        said("stopping", "SIGTERM", member=gone, process="engine"),
        said("transfer", member=gone, to=winner, phase="taking_over"),
        said("role", "asked to take leadership", member=winner, role="CANDIDATE"),
        said("role", "elected", member=winner, role="LEADER"),
        said("handed_over", f"{winner} leads", member=gone, to=winner),
        said("peer_lost", member=winner, peer=gone),
    )


async def pause(stage: Stage) -> None:
    gone = await stage.breaks("pause", for_s=LONG_S)
    winner = await another_leads(stage, gone, "was silent for")
    # Whether it notices its stall or hears the new leader first, when it goes on, is chance.
    for found_out in (said("stalled", "did nothing for", member=gone), said("leader", member=gone, leader=winner)):
        await stage.story.reported(said("role", "elected", member=winner), found_out)


async def cut_off(stage: Stage, kind: str) -> None:
    gone = await stage.breaks(kind, for_s=LONG_S)
    winner = await another_leads(stage, gone, "was silent for")
    others = [one for one in IDS if one != gone]
    await stage.story.reported(
        *(said("peer_silent", "no answer for", member=gone, peer=one) for one in others[:1]),
        said("role", "no quorum of answers", *others, member=gone, was="LEADER"),
        said("leader", member=gone, leader=winner),
    )


async def mute(stage: Stage) -> None:
    gone = await stage.breaks("mute", for_s=LONG_S)
    winner = await another_leads(stage, gone, "was silent for")
    await stage.story.reported(said("role", member=gone, was="LEADER"), said("leader", member=gone, leader=winner))


async def deaf(stage: Stage) -> None:
    gone = await stage.breaks("deaf", for_s=LONG_S)
    await stage.story.reported(
        said("role", "no quorum of answers", member=gone, was="LEADER"),
        line_of(lambda one: one != gone, "role", "elected", role="LEADER"),
    )
    await another_leads(stage, gone, "was silent for")


async def bridge(stage: Stage) -> None:
    leader = await stage.breaks("bridge", for_s=LONG_S)
    cut = next(one for one in IDS if f"cannot reach {one}" in stage.said[0])
    await stage.story.reported(
        said("role", f"leader {leader} was silent", member=cut, role="CANDIDATE"),
        said("not_elected", "pre-vote", f"{leader} silent", member=cut),
        said("leader", member=cut, leader=leader),
    )
    await stage.story.reported(
        said("peer_silent", "no answer for", member=leader, peer=cut),
        said("peer_answers", "of silence", member=leader, peer=cut),
    )
    assert not stage.story.tells(said("role", role="LEADER")), "nobody needed another leader"


async def slow(stage: Stage) -> None:
    await stage.settle()
    await stage.nobody_is_late()
    stage.body = b"x" * 60_000
    try:
        late = await stage.breaks("slow", "follower", LONG_S)
        leader = await stage.operator.leader()

        # One of these bodies alone takes longer than a second there: its answers come late, or, while heartbeats wait
        # behind it, nothing comes at all.
        def late_or_silent(line: Line) -> bool:
            mine = line["member"] == leader and line.get("peer") == late
            return mine and (line["event"], "ms" in line.get("reason", "")) in (
                ("peer_slow", True),
                ("peer_silent", True),
            )

        await stage.story.reported(late_or_silent)
    finally:
        stage.body = b"x" * 500


async def reset(stage: Stage) -> None:
    member = await stage.breaks("reset", "follower")
    for other in (one for one in IDS if one != member):
        lost, _ = await stage.story.reported(
            said("peer_lost", member=other, peer=member), said("peer_connected", member=other, peer=member)
        )
        assert "reset" in lost["reason"] or "closed" in lost["reason"]


async def transfer(stage: Stage) -> None:
    await stage.settle()
    before = await stage.operator.leader()
    wanted = await stage.breaks("transfer")
    await stage.story.reported(
        said("transfer", "asked for", member=before, to=wanted, phase="catching_up"),
        said("transfer", member=before, to=wanted, phase="taking_over"),
        said("role", "asked to take leadership", member=wanted, role="CANDIDATE"),
        said("role", "elected", member=wanted, role="LEADER"),
        said("transfer", f"{wanted} leads", member=before, phase="done"),
    )


async def disk_full(stage: Stage) -> None:
    await stage.breaks("disk_full", "small", 3.0)
    full = said("alarm", member=SMALL, code="disk_full")
    (alarm,) = await stage.story.reported(full)
    assert alarm["level"] == "error"
    await stage.story.reported(
        full, said("transfer", "the disk is full", member=SMALL),
        line_of(lambda one: one != SMALL, "role", "elected", role="LEADER"),
    )  # fmt: skip
    await stage.story.reported(full, said("alarm_cleared", member=SMALL, code="disk_full"))


async def wipe(stage: Stage) -> None:
    await stage.breaks("wipe", "follower", 1.0)
    gone = next(line.partition(":")[0] for line in stage.said if "its log removed" in line)
    await stage.story.reported(
        line_of(lambda one: one != gone, "peer_lost", peer=gone),
        said("started", "the log is empty", member=gone),
        said("voter_state", member=gone, state="REJOINING"),
        said("voter_state", "durable up to the target", member=gone, state="VOTER"),
    )


async def rot(stage: Stage) -> None:
    rotten = await stage.breaks("rot", "follower")
    index = int(next(line for line in stage.said if "flipped" in line).split("entry ")[1].split()[0])
    await stage.story.reported(
        said("alarm", f"entry {index} (crc_invalid)", "until repaired", member=rotten, code="log_damaged"),
        said("repair", member=rotten, first_index=index, last_index=index, fault="crc_invalid"),
        said("alarm_cleared", member=rotten, code="log_damaged"),
    )


async def kill_broker(stage: Stage) -> None:
    gone = await stage.breaks("kill_broker")
    await stage.story.reported(
        said("broker_ended", "killed by signal 9", "started again", member=gone, process="supervisor"),
        said("listening", member=gone, process="broker"),
        said("role_changed", member=gone, process="broker", change="changeToMaster", outcome="done"),
    )


async def pause_broker(stage: Stage) -> None:
    gone = await stage.breaks("pause_broker", for_s=LONG_S)
    await stage.story.reported(said("stalled", "this process did nothing for", member=gone, process="broker"))


STORIES = {
    "kill_engine": kill_engine, "kill_node": kill_node, "kill_all": kill_all, "stop_node": stop_node, "pause": pause,
    "off": lambda stage: cut_off(stage, "off"), "deposed": lambda stage: cut_off(stage, "deposed"), "mute": mute,
    "deaf": deaf, "bridge": bridge, "slow": slow, "reset": reset, "transfer": transfer, "disk_full": disk_full,
    "wipe": wipe, "rot": rot,
}  # fmt: skip


STORIES_OF_BROKERS = {"kill_broker": kill_broker, "pause_broker": pause_broker}


def test_there_is_a_story_of_every_fault() -> None:
    assert set(STORIES) == set(KINDS) - BROKER_KINDS
    assert set(STORIES_OF_BROKERS) == BROKER_KINDS


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("brokers", [pytest.param(False, id="plain log"), pytest.param(True, id="brokers")])
def test_the_logs_alone_tell_each_fault_its_order_and_its_reason(tmp_path: Path, brokers: bool) -> None:
    async def play() -> None:
        async with stage(tmp_path, brokers=brokers) as group:
            for kind, tell in (STORIES_OF_BROKERS if brokers else STORIES).items():
                try:
                    await tell(group)
                except AssertionError as error:
                    raise AssertionError(f"{kind}: {error}") from error
            await group.settle()

    asyncio.run(play())
    token = (tmp_path / "token").read_text()
    for path in (tmp_path / "logs").glob("*.log"):
        text = path.read_text()
        assert token not in text
        assert "xxxxxxxx" not in text, "no bodies"
        for line in text.splitlines():
            reported = json.loads(line)
            is_for_its_starter = reported["event"] in ("ready", "broker")
            assert is_for_its_starter or {"time", "level", "event", "process", "member", "group"} <= set(reported)
