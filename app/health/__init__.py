"""What is wrong with a group, and what to do: rules that the console and `quorumscope status` share. Pure."""
