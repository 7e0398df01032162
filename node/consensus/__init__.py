"""The replication core without I/O: no socket, clock, thread or file of its own."""
