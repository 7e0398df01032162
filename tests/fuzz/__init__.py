"""Random and mutated bytes for everything that takes bytes from outside. `python -m tests.fuzz` runs it on and on."""
