"""Quorumscope: the console, its API, the audits and the command line."""
