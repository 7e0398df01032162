"""The broker on the log as it is, in simulated time: beside real engines, with clients of RocketMQ's protocol."""
