"""All that is checked in the driver's world: the core's invariants as they are, and what only this world can see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.simulation.driver.callers import Promptness
from tests.simulation.driver.control import ControlPlanes, Moments
from tests.simulation.driver.followers import Followers
from tests.simulation.driver.lane_checks import LaneOrder
from tests.simulation.invariants_apply import Appliers
from tests.simulation.invariants_clients import Clients
from tests.simulation.invariants_disk import Disks
from tests.simulation.invariants_election import Elections
from tests.simulation.invariants_log import Logs
from tests.simulation.invariants_members import Memberships
from tests.simulation.invariants_records import RECORD_INVARIANTS, Records
from tests.simulation.liveness import Liveness
from tests.simulation.mirror import Mirrors
from tests.simulation.observer import Observer

DRIVER_INVARIANTS: Final[Mapping[str, str]] = {
    "frames": "what a process writes can be cut into frames and read by its receiver",
    "answered_once": "a member answers each request of a client exactly once (ClientRequests)",
    "never_sent_again": "a client sends an append again only after an answer that it was not appended (C2)",
    "read_as_asked": "a read that its caller wants confirmed goes out as one; nobody asks for another kind here (C1)",
    "current_is_current": "what a control plane calls current was so while it was asked (INTERFACES: engine ok)",
    "committed_is_committed": "what a control plane shows as committed is what is committed there",
    "own_write_seen": "what a control plane said is appended is in the state that it calls current afterwards",
    "pages_go_on": "a control plane's answer that holds less than there is says where to go on",
    "stream_one_pending": "a stream has one push at most that its client has not taken, and none goes back",
    "stream_committed": "what a stream calls committed is; in the end its client knows all of it (liveness)",
    "stream_lease": "while a lease that was told lasts, no other member leads (C1, E7)",
    "local_is_local": "what a control plane shows of the local log lies there",
    "no_cold_read_on_loop": "the loop's turn reads no data and no index file (S9)",
    "no_sync_on_loop": "the loop's turn waits for no sync, a directory's neither (S9)",
    "one_thread_writes": "a thread that reads changes nothing on the disk (S4; node/engine/disk.py)",
    "soon_durable": "what is in a log becomes durable without another append having to come (R2, S9)",
    "lane_in_sequence": "what came over a lane lies behind its end index, in its sequence (lanes)",
    "lane_has_no_gap": "where an entry of a lane is in the log, so are all before it (lanes)",
    "lane_ends_for_good": "whatever is not taken whole ends its lane: nothing sent after it is acknowledged (lanes)",
    "voided_lane_is_over": "behind the end index of a later lane no entry of an earlier one is acknowledged (lanes)",
    "lanes_fence": "nothing of an earlier lane lies behind the end index of a later one (lanes)",
    "only_records_enter": "in a broker group nothing enters but records over a lane, of a client's channels",
    **RECORD_INVARIANTS,
    "control_reads": "a control plane reads the files of an orderly store without an error",
}


def driver_checks() -> list[Observer]:
    """One set of observers for one world, in the order in which they must hear of things."""
    mirrors, moments = Mirrors(), Moments()
    records = Records(mirrors)
    members = Memberships(mirrors)
    logs = Logs(mirrors, members)
    return [
        mirrors, records, moments, members, logs, Elections(mirrors, members), Disks(mirrors), Clients(logs),
        Appliers(logs), LaneOrder(logs), ControlPlanes(mirrors, logs, moments), Promptness(), Followers(logs),
        Liveness(mirrors, logs),
    ]  # fmt: skip
