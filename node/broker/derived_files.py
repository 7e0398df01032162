"""What a broker does with files that follow from its log, in a thread: the rest of a save, and all of them removed.

Invariant: what a save says is on disk; one that found no space for saying so changed nothing, and may be tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node.broker.host import BrokerHost
from node.message_store.dispatch_mark import mark_path
from node.message_store.errors import save_error
from node.message_store.message_store import CONSUME_QUEUE, INDEX
from node.message_store.state_file import SavedState, state_path
from node.message_store.write_files import Disk


def finish_save(finish: Callable[[Disk], None], state: SavedState | None, root: Path, host: BrokerHost) -> None:
    """`finish`: of the dispatcher. Raises OSError, of which NoSpaceToSave."""
    disk = host.disk()
    try:
        finish(disk)
        if state is not None:
            try:
                state.write(root, disk)
            except OSError as error:
                raise save_error(error) from error
    finally:
        disk.close()


def remove_derived(root: Path, host: BrokerHost) -> None:
    """Queues and index, and then what says how far they are. Raises OSError."""
    disk = host.disk()
    try:
        for path in (root / INDEX, root / CONSUME_QUEUE, state_path(root), mark_path(root)):
            disk.remove(path)
        disk.sync_folder(root)
        disk.sync_folder(mark_path(root).parent)
    finally:
        disk.close()
