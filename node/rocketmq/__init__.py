"""RocketMQ's remoting protocol, which its clients speak: commands, their headers and bodies, and a server for them."""
