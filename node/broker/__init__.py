"""A member's broker: RocketMQ's message store on the replicated log, in a process of its own beside the engine."""
