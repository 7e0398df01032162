"""Remoting frames and bodies: bytes to messages and back. Knows node.protocol only."""
