"""Typed views of a member's state: state, watermarks, dispatchers, closures and events.

The engine fills them (`node.engine.introspect`), the control plane hands them on (`node.control.snapshots`), and the
console, `status`, the demo and the benches read them again (`reading.read`). A new field is declared here once, filled
in `introspect`, and can be used on a page.

Invariants: the views know neither the engine nor the control plane, only the values that are shown; `to_bytes` writes
exactly the fields that were set, in the order of their declaration, which is the order of INTERFACES.
"""
