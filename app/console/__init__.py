"""Pages and fragments of the console, aggregation of the nodes' states, the live stream."""
