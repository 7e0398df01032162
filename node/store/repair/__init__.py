"""`quorumscope store repair` and `store adopt`: what only a person may decide about a stopped member's store."""
