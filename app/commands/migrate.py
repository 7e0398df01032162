"""`migrate config`: a RocketMQ broker's configuration as a member's of ours.

Invariant: it reads one file and writes nothing but its result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.broker_conf import PROPERTIES_BYTES_MAX, BrokerConfError, Translated, checked, read_properties, translate
from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, say, show_json
from app.commands.settings import toml_of
from node.config_models import TABLES
from node.regular_file import read_regular

commands = typer.Typer(help="Come from RocketMQ.", no_args_is_help=True, rich_markup_mode=None)


@commands.command()
def config(
    file: Annotated[Path, typer.Argument(metavar="BROKER.CONF", help="The broker's file of properties.")],
    as_json: JsonOption = False,
) -> int:
    """Print a broker.conf of DLedger's mode as a member's configuration, and say what became of each key.

    The result is TOML for --config; what was not taken over as it stood is on stderr.
    """
    try:
        found = translate(read_properties(read_regular(file, PROPERTIES_BYTES_MAX)))
        checked(found)
    except OSError as error:
        raise Failure(Exit.USAGE, f"{file}: {error.strerror}") from error
    except BrokerConfError as error:
        raise Failure(Exit.USAGE, f"{file}: {error}") from error
    if as_json:
        show_json({"settings": _tables(found), "peers": found.peers, "notes": found.notes})
        return Exit.FINE
    for table, values in _tables(found).items():
        print(f"[{table}]")
        for name, value in values.items():
            print(f"{name} = {toml_of(value) if not isinstance(value, float) else value}")
        print()
    print("[peers]")
    for member_id, address in found.peers.items():
        print(f'{member_id} = "{address}"')
    for name, note in found.notes.items():
        say(f"{name}: {note}")
    return Exit.FINE


def _tables(found: Translated) -> dict[str, dict[str, object]]:
    """In the order of docs/configuration.md."""
    tables: dict[str, dict[str, object]] = {}
    for table, model in TABLES.items():
        values = {
            name: found.values[f"{table}.{name}"] for name in model.model_fields if f"{table}.{name}" in found.values
        }
        if values:
            tables[table] = values
    return tables


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(commands, name="migrate")
