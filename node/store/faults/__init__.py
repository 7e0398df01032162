"""Damaged entries of a log: finding them, keeping them on record, and replacing them with a peer's (SAFETY S6)."""
