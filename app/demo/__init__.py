"""`quorumscope demo`: three members, a console and a stream of real messages on this machine, and breaks."""
