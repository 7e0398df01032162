"""Back-ups of a running group, of a stopped member, and of the console's database (`quorumscope backup`)."""
