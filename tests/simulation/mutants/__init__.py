"""Planted bugs: what the simulator must find, or it would not find the next real one either (DESIGN 10)."""

from __future__ import annotations

from tests.simulation.mutants.applying import APPLIED, CALLED
from tests.simulation.mutants.bases import BASES
from tests.simulation.mutants.brokers import BROKERS
from tests.simulation.mutants.client import CLIENT_SIDE
from tests.simulation.mutants.control import CONTROL
from tests.simulation.mutants.copies import COPIES
from tests.simulation.mutants.counting import COUNTING
from tests.simulation.mutants.driver import DRIVING
from tests.simulation.mutants.election import ELECTION
from tests.simulation.mutants.faults import FAULTY
from tests.simulation.mutants.lanes import LANE_RULES
from tests.simulation.mutants.members import CHANGES_OF_MEMBERS, OF_KINDS
from tests.simulation.mutants.overlaps import OVERLAPS
from tests.simulation.mutants.pairs import PAIRS
from tests.simulation.mutants.planting import Edit, Mutant, PlantingError, Tally
from tests.simulation.mutants.reads import READING
from tests.simulation.mutants.real_driver import REAL_DRIVER
from tests.simulation.mutants.records import RECORDS
from tests.simulation.mutants.replication import REPLICATION
from tests.simulation.mutants.retention import RETENTION
from tests.simulation.mutants.settings import SETTINGS
from tests.simulation.mutants.slow_links import SLOW_LINKS
from tests.simulation.mutants.snapshots import SNAPSHOTS_SENT
from tests.simulation.mutants.storage import STORAGE
from tests.simulation.mutants.streams import STREAMING

__all__ = ["MUTANTS", "Edit", "Mutant", "PlantingError", "Tally"]

CORE = (
    *ELECTION,
    *COUNTING,
    *REPLICATION,
    *READING,
    *STORAGE,
    *FAULTY,
    *COPIES,
    *DRIVING,
    *APPLIED,
    *CALLED,
    *SLOW_LINKS,
    *RETENTION,
    *BASES,
    *SNAPSHOTS_SENT,
    *CHANGES_OF_MEMBERS,
    *OF_KINDS,
    *SETTINGS,
)
ALL = (*CORE, *REAL_DRIVER, *CLIENT_SIDE, *CONTROL, *OVERLAPS, *STREAMING, *LANE_RULES, *RECORDS, *BROKERS, *PAIRS)
MUTANTS: dict[str, Mutant] = {one.name: one for one in ALL}
