"""How RocketMQ's Java broker starts on a directory: a model for tests, by FORMATS' facts; the vectors vouch for it."""
