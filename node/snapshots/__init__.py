"""Snapshots of a state machine on disk, in DLedger's layout; see `directory`."""
