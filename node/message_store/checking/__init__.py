"""Is a message store sound? Commit log against consume queues against index: pure functions over ranges."""
