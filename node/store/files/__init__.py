"""The files of a store, each kind wrapped once: segments, checkpoint, term and vote, identity, the archive of cuts."""
