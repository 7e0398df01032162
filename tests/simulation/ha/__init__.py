"""Worlds of classic HA: a master and slaves on simulated disks, with everything that goes wrong between them."""
