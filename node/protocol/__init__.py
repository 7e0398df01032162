"""Values of the protocol: entries, messages, codes. No I/O, no clock, no randomness."""
