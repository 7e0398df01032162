"""A broker in classic master/slave mode: RocketMQ's requests on a log of its own, in a pair instead of a group."""
