"""`GET segments` and `GET truncations`: the files of a log, and what was ever cut from it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from node.views.base import Bounded, Flag, Text, View, Whole


class SegmentView(View):
    """One file of the log; `start`: where it begins in the log's bytes (data) or units (index)."""

    kind: Literal["data", "index"]
    name: Text
    start: Whole | None = None
    size_bytes: Whole
    first_index: Whole | None = None
    last_index: Whole | None = None


class BaseMembersView(View):
    """The newest entry about the group's members that is in front of the log."""

    index: Whole
    body: Text


class BaseView(View):
    """The entry before the first one held; `position`: where the first one begins."""

    index: Whole
    term: Whole
    chain_crc: Whole | None = None
    position: Whole
    members: BaseMembersView | None = None


class SegmentsStoreView(View):
    """Of which store the files are; `base` None: the log begins with entry 0."""

    kind: Text
    data_file_size_bytes: Whole
    index_file_size_bytes: Whole
    sealed_from: Whole | None = None
    base: BaseView | None = None


class SegmentsView(View):
    """A page of them; `next`: how the next page is asked for. `store` None: an older release, or another server."""

    store: SegmentsStoreView | None = None
    items: Annotated[tuple[SegmentView, ...], Bounded]
    next: Text | None = None


class SnapshotFileView(View):
    """A file of a snapshot."""

    name: Text
    size_bytes: Whole


class SnapshotItemView(View):
    """A state machine's state as of entry `index`."""

    index: Whole
    term: Whole | None = None
    chain_crc: Whole | None = None
    data_bytes: Whole | None = None
    data_crc: Whole | None = None
    is_sealed: Flag | None = None
    files: Annotated[tuple[SnapshotFileView, ...], Bounded]


class SnapshotListView(View):
    """The whole ones, newest first."""

    items: Annotated[tuple[SnapshotItemView, ...], Bounded]


class TruncationView(View):
    """One cut. Other servers call the fields otherwise."""

    id: Whole | None = Field(default=None, validation_alias=AliasChoices("id", "seq"))
    from_index: Whole
    to_index: Whole
    committed_index: Whole | None = Field(
        default=None, validation_alias=AliasChoices("committed_at", "committed_index")
    )
    leader_id: Text | None = Field(default=None, validation_alias=AliasChoices("leader_id", "leader"))
    reason: Text | None = None
    time: Text | None = Field(default=None, validation_alias=AliasChoices("time", "at"))
    begins_behind: Whole | None = None  # the whole log was replaced by one that begins behind that entry


class TruncationsView(View):
    """A page of them."""

    items: Annotated[tuple[TruncationView, ...], Bounded]
    next: Text | None = None


class ArchivedEntryView(View):
    """An entry that was cut."""

    index: Whole
    term: Whole


class ArchivedEntriesView(View):
    """A page of them."""

    items: Annotated[tuple[ArchivedEntryView, ...], Bounded]
    next: Text | None = None
