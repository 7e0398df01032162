"""Prints docs/configuration.md, made from the models so that it cannot be wrong."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise

from app.commands.settings import toml_of
from node.changing_keys import MEANING, change_of
from node.config_models import TABLES
from node.config_table import Table

HEAD = """# Configuration

Made from the models by `python -m app.commands.configuration_page`; do not edit.

Order: flags, `QUORUMSCOPE_*`, `--config FILE` (TOML), defaults. The first that says a key wins; `[peers]` is taken
whole. A named file that is missing, an unknown key, an unknown variable and a value that does not fit are errors that
name file and key. `quorumscope config show --origin` says where each value comes from, `quorumscope config check` what
is wrong.

- In the file: `[timing]` and below it `max_push_time_out_ms = 1000`.
- As a variable: `QUORUMSCOPE_TIMING__MAX_PUSH_TIME_OUT_MS=1000` (lists with commas).
- As a flag: its own where it has one (`--flush`), else `--set timing.max_push_time_out_ms=1000`.

Other variables: `QUORUMSCOPE_CONFIG` (the file), `QUORUMSCOPE_TOKEN` (the API token that clients show).
Names and defaults are DLedger's, in snake case and with the unit added, except for heartbeat and election times.

What it takes to change a key is in its row:

CHANGES
SIGHUP has the file read again, by every process of a node (`quorumscope node` passes it on). A file that cannot be read
or says what does not fit changes nothing: the log says `not_reread` and why, and an alarm stands until a later SIGHUP
found it in order. One that is half written may be in order, too, with defaults for what is not there yet: write it
beside, and rename it. Of a key that differs and cannot change, or whose change would not be safe now, the log and
`settings` in `GET state` say so, under an alarm (`restart_needed`, `settings_refused`); flags and variables of a
process that runs stay what they were. How to change flush, lease reads and timings:
[operations](operations.md#changing-settings-while-the-group-runs).

## [peers]

All members, this one included: `n0 = "127.0.0.1:20911"`, a line each. `--peers` and `QUORUMSCOPE_PEERS` take DLedger's
string `n0-127.0.0.1:20911;n1-127.0.0.1:20912`; so does `peers = "…"` at the top of the file. A change takes a restart.
"""


def meanings(table: type[Table]) -> dict[str, str]:
    """The text below each key."""
    (made,) = ast.parse(inspect.getsource(table)).body
    assert isinstance(made, ast.ClassDef)
    found: dict[str, str] = {}
    for key, below in pairwise(made.body):
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name) and isinstance(below, ast.Expr):
            found[key.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return found


def page() -> str:
    """The whole page."""
    changes = "".join(f"- `{change.value}`: {takes}.\n" for change, takes in MEANING.items())
    parts = [HEAD.replace("CHANGES\n", f"{changes}\n")]
    for table, model in TABLES.items():
        parts.append(f"\n## [{table}]\n\n| key | default | change | meaning |\n|---|---|---|---|\n")
        meaning = meanings(model)
        for name, field in model.model_fields.items():
            unset = field.default is None or field.default == ""
            default = "" if unset else f"`{toml_of(field.default)}`"
            parts.append(f"| `{name}` | {default} | {change_of(f'{table}.{name}').value} | {meaning.get(name, '')} |\n")
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
