"""`quorumscope store repair` and `store adopt`: decisions about a stopped member's store that only an operator may
take."""
