"""The simulator: whole groups of the real replica over simulated disks, network and clocks, from one seed."""
