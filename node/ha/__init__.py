"""Classic HA: a master sends its commit log to slaves by offset (document 4 of RocketMQ's book)."""
