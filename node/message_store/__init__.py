"""RocketMQ's message store: its formats, and a store's files read-only. See `docs/messages.md`."""
