"""A broker group's directory handed over to RocketMQ's Java broker, and taken over from it. See `docs/hand-over.md`."""
