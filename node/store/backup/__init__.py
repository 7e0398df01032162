"""Back-ups of a log: how one lies on the disk, how it is checked, and how stores are made of it again."""
