"""State machines: what applies the committed entries of a group's log, in a process of its own beside the engine.

`interface` is what one implements, `kv` the one that ships; `docs/state-machines.md` builds another one. `caller` is
the rules by which it is called, `process` the process that it lives in.
"""

from node.state_machine.interface import BadQuestion, Command, StateMachine

__all__ = ["BadQuestion", "Command", "StateMachine"]
