"""The asyncio driver around the consensus core: sockets, one timer, the disk's threads."""
