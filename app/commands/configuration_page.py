"""Prints docs/configuration.md, made from the models so that it cannot be wrong."""

from __future__ import annotations

from app.commands.settings import toml_of
from node.config_models import TABLES

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

## [peers]

All members, this one included: `n0 = "127.0.0.1:20911"`, a line each. `--peers` and `QUORUMSCOPE_PEERS` take DLedger's
string `n0-127.0.0.1:20911;n1-127.0.0.1:20912`; so does `peers = "…"` at the top of the file.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for table, model in TABLES.items():
        parts.append(f"\n## [{table}]\n\n| key | default | meaning |\n|---|---|---|\n")
        for name, field in model.model_fields.items():
            unset = field.default is None or field.default == ""
            default = "" if unset else f"`{toml_of(field.default)}`"
            meaning = " ".join((field.description or "").split())
            parts.append(f"| `{name}` | {default} | {meaning} |\n")
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
