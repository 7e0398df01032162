"""RocketMQ's name service: which brokers there are, and where the queues of a topic lie."""
