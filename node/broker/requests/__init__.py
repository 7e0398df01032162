"""A broker's answers to RocketMQ's clients: handlers of the remoting protocol over a message store."""
