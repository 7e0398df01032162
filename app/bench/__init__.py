"""`quorumscope bench`: what the log does on this machine, measured on real nodes."""
