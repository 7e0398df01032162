"""The driver, the client and the control plane as they are, in simulated time: loops, sockets, threads and disks."""
