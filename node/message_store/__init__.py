"""RocketMQ's message store: its formats, a store's files read, and what is derived from its log written. See
`docs/messages.md`."""
