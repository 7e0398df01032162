"""`config check` and `config show`: what the configuration says, and who said it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, show_json
from app.commands.targets import ConfigOption, settings_of
from node.config import ConfigError, Settings, format_peers, parse_set
from node.config_models import TABLES

SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="As a flag would say it; repeatable.")
]
commands = typer.Typer(help="Check and show the configuration.", no_args_is_help=True, rich_markup_mode=None)


def _loaded(config: Path | None, settings: list[str] | None) -> Settings:
    try:
        overrides = dict(parse_set(text) for text in settings or [])
    except ConfigError as error:
        raise Failure(Exit.USAGE, str(error)) from error
    return settings_of(overrides, config)


@commands.command()
def check(
    config: ConfigOption = None,
    settings: SetOption = None,
    for_node: Annotated[bool, typer.Option("--for-node", help="Also check that a member could start with it.")] = False,
) -> int:
    """Read the configuration as a program would, and say what is wrong with it."""
    loaded = _loaded(config, settings)
    if for_node or loaded.node.id:
        try:
            loaded.check_node()
        except ConfigError as error:
            raise Failure(Exit.USAGE, str(error)) from error
    said = sum(origin != "default" for origin in loaded.origin.values())
    print(f"fine: {said} settings given, {len(loaded.origin) - said} by default")
    return Exit.FINE


def plain(value: Any) -> Any:
    """A setting as JSON and TOML know it."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return value


def shown(value: Any) -> Any:
    """A setting as it may be looked at: passwords in URLs are hidden, also those that a URL should have had encoded."""
    if isinstance(value, tuple):
        return tuple(shown(one) for one in value)
    if not isinstance(value, str) or "://" not in value:
        return value
    value = re.sub(r"(?<=://)([^/?#@:]*):.*@", r"\1:***@", value, flags=re.DOTALL)
    return re.sub(r"(?i)([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]+", r"\1***", value)


def toml_of(value: Any) -> str:
    """A setting as one would write it into the file."""
    value = plain(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(toml_of(item) for item in value) + "]"
    if isinstance(value, int | float):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


@commands.command()
def show(
    config: ConfigOption = None,
    settings: SetOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Print every setting as it is in force, as a TOML file that could be used."""
    loaded = _loaded(config, settings)
    if as_json:
        values: dict[str, Any] = {
            table: {name: plain(shown(getattr(getattr(loaded, table), name))) for name in model.model_fields}
            for table, model in TABLES.items()
        }
        values["peers"] = loaded.peers
        show_json({"settings": values, "origin": dict(loaded.origin)} if origin else values)
        return Exit.FINE

    def line(text: str, key: str) -> str:
        return f"{text:<60} # {loaded.origin[key]}" if origin else text

    for table, model in TABLES.items():
        print(f"[{table}]")
        for name in model.model_fields:
            value = shown(getattr(getattr(loaded, table), name))
            # An empty id and an absent file cannot be written down as themselves.
            text = f"# {name} is not set" if value in (None, "") else f"{name} = {toml_of(value)}"
            print(line(text, f"{table}.{name}"))
        print()
    print(line("[peers]", "peers"))
    for member_id, address in loaded.peers.items():
        print(f'"{member_id}" = "{address}"' if "." in member_id else f'{member_id} = "{address}"')
    if loaded.peers:
        print(f"# the same as --peers '{format_peers(loaded.peers)}'")
    return Exit.FINE


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(commands, name="config")
