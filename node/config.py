"""Loads the configuration: flags, then QUORUMSCOPE_* variables, then `--config FILE` (TOML), then defaults.

Invariants: nothing is ignored. A named file that is missing, an unknown key, an unknown QUORUMSCOPE_ variable and a
value that does not fit are errors of one line that name where they stand. `Settings.origin` knows for every key which
of the four said it. `[peers]` is taken whole from the strongest place that has one, never merged.

Variables are QUORUMSCOPE_<TABLE>__<KEY> (one underscore is understood too), and QUORUMSCOPE_PEERS.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from node.access_rows import rows_of
from node.broker_table import BrokerTable, broker_trouble
from node.config_models import (
    TABLES,
    AccessTable,
    AuditTable,
    ConsoleTable,
    ControlTable,
    NodeTable,
    OidcTable,
    RetentionTable,
    StoreTable,
    TimingTable,
)
from node.config_table import is_loopback
from node.control_tokens import TokensError, read_tokens
from node.ha_table import HaTable, ha_trouble
from node.own_addresses import addresses_trouble
from node.protocol.peers import check_peers, format_peers, parse_peers, split_address
from node.regular_file import CONFIG_BYTES_MAX, open_regular, read_regular, whole
from node.tls_files import tls_trouble

__all__ = [
    "NODE_FLAGS",
    "ConfigError",
    "Settings",
    "format_peers",
    "is_loopback",
    "load",
    "parse_node_arguments",
    "parse_peers",
    "read_token",
    "split_address",
]

PREFIX: Final = "QUORUMSCOPE_"
# Ours, but no settings: the config file's name, the CLI's API token, what `make test` may go without, and where the
# demo that started a console listens (a secret address: a command line could be read by others).
OTHER_VARIABLES: Final = ("QUORUMSCOPE_CONFIG", "QUORUMSCOPE_TOKEN", "QUORUMSCOPE_WAIVE", "QUORUMSCOPE_DEMO_URL")
DEFAULT: Final = "default"
TOKEN_BYTES_MAX: Final = 64 << 10

# Flags of `python -m node` and of its two processes -> the key they set. None: a switch.
NODE_FLAGS: Final[Mapping[str, str]] = {
    "--id": "node.id",
    "--group": "node.group",
    "--peers": "peers",
    "--data": "node.data",
    "--control": "control.address",
    "--flush": "node.flush",
    "--state-machine": "node.state_machine",
    "--broker": "broker.address",
    "--role": "ha.role",
    "--ha": "ha.address",
    "--ha-peers": "ha.peers",
    "--init": "node.init",
    "--join": "node.join",
    "--group-token": "node.group_token",
    "--secret-file": "node.secret_file",
    "--make-secret": "node.make_secret",
    "--log-level": "node.log_level",
    "--log-format": "node.log_format",
}
SWITCHES: Final = ("--init", "--join", "--make-secret")
USAGE: Final = (
    "usage: python -m node --id ID --peers ID-HOST:PORT;… [--group G] [--data DIR] [--control HOST:PORT]"
    " [--flush sync|async] [--state-machine kv|MODULE:CLASS | --broker HOST:PORT] [--init | --join]"
    " [--role sync_master|async_master|slave --ha HOST:PORT [--ha-peers HOST:PORT;…]]"
    " [--group-token TOKEN] [--secret-file FILE] [--make-secret]"
    " [--log-level debug|info|warning|error] [--log-format console|json]"
    " [--config FILE] [--set TABLE.KEY=VALUE]… [--exit-with-engine]"
)


class ConfigError(ValueError):
    """What is wrong with the configuration, in one line that names where."""


class Settings(BaseModel):
    """All tables. `origin["timing.max_push_time_out_ms"]` says who set that key; "peers" is one key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: NodeTable = NodeTable()
    peers: dict[str, str] = {}
    store: StoreTable = StoreTable()
    retention: RetentionTable = RetentionTable()
    timing: TimingTable = TimingTable()
    control: ControlTable = ControlTable()
    access: AccessTable = AccessTable()
    broker: BrokerTable = BrokerTable()
    ha: HaTable = HaTable()
    console: ConsoleTable = ConsoleTable()
    oidc: OidcTable = OidcTable()
    audit: AuditTable = AuditTable()
    _origin: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def origin(self) -> Mapping[str, str]:
        """Dotted key -> "flag --x", "variable QUORUMSCOPE_…", "file NAME" or "default"; every key is there."""
        return self._origin

    @property
    def store_directory(self) -> Path:
        """DATA/dledger-<id>, as DLedger has it."""
        return self.node.data / f"dledger-{self.node.id}"

    @property
    def self_address(self) -> str:
        """This member's own "host:port", for the other members; in classic mode for the other brokers."""
        return self.ha.address if self.ha.is_classic else self.peers[self.node.id]

    @property
    def control_token_file(self) -> Path | None:
        """The control plane's token, the node's own where it has none to itself."""
        return self.control.token_file or self.node.token_file

    def check_tables(self) -> Settings:
        """Raises ConfigError where no member can be started with this, whatever its files say; returns itself."""
        if self.ha.is_classic:
            if wrong := ha_trouble(self.ha, self.node, self.broker, self.peers):
                raise ConfigError(wrong)
            return self._check_control()
        known = ", ".join(sorted(self.peers)) or "none"
        if not self.peers:
            raise ConfigError("[peers] is empty: name the members with --peers n0-127.0.0.1:20911;n1-…")
        if not self.node.id:
            raise ConfigError(f"[node] id is missing: say which member this is with --id (known: {known})")
        if self.node.id not in self.peers:
            raise ConfigError(f'[node] id "{self.node.id}" is not one of [peers] ({known})')
        strangers = [name for name in self.node.preferred_leaders if name not in self.peers]
        if strangers:
            raise ConfigError(f'[node] preferred_leaders: "{strangers[0]}" is not one of [peers] ({known})')
        if self.broker.has_broker:
            index_bytes = self.store.mapped_file_size_for_entry_index_bytes
            if wrong := broker_trouble(index_bytes, self.peers, self.node.state_machine):
                raise ConfigError(wrong)
        if not is_loopback(split_address(self.self_address)[0]) and not self.proves_members():
            raise ConfigError(
                f"[peers] {self.node.id} = {self.self_address} is beyond loopback: give [node] secret_file, or"
                " tls_cert_file, tls_key_file and tls_ca_file; while a running group gets its first secret,"
                ' secret = "optional" needs allow_plaintext = true as well'
            )
        rows = rows_of(self.access.rows)
        if rows and self.node.token_file is None:
            raise ConfigError("[access] rows need [node] token_file: this member's own control plane shows that token")
        if any(row.kind == "certificate" for row in rows) and not self.node.tls:
            raise ConfigError(
                "[access] names a certificate: that needs [node] tls_cert_file, tls_key_file, tls_ca_file"
            )
        return self._check_control()

    def _check_control(self) -> Settings:
        key = "[ha] address" if self.ha.is_classic else f"[peers] {self.node.id}"
        token = self.control_token_file or self.control.tokens_file
        if wrong := addresses_trouble(key, self.self_address, self.control, self.broker, token):
            raise ConfigError(wrong)
        return self

    def check_node(self) -> Settings:
        """`check_tables`, and the files that are named. Raises ConfigError."""
        self.check_tables()
        if self.control.tokens_file is not None:
            try:
                read_tokens(self.control.tokens_file)
            except TokensError as error:
                raise ConfigError(f"[control] tokens_file: {error}") from None
        for key, path in self._named_files():
            if path is not None and not path.is_file():
                raise ConfigError(f"{key} = {path} ({self.origin.get(key, DEFAULT)}): there is no such file")
        node, control = self.node, self.control
        for table, trouble in (
            ("node", tls_trouble(node.tls_cert_file, node.tls_key_file, node.tls_ca_file)),
            ("control", tls_trouble(control.tls_cert_file, control.tls_key_file, None)),
        ):
            if trouble is not None:
                raise ConfigError(f"[{table}] TLS: {trouble}")
        return self

    def proves_members(self) -> bool:
        """Whether nobody becomes a member here without TLS or the secret, or somebody said that it is meant so."""
        node = self.node
        return node.tls or (node.secret_file is not None and (node.secret == "required" or node.allow_plaintext))

    def _named_files(self) -> Iterable[tuple[str, Path | None]]:
        for key in ("token_file", "tls_cert_file", "tls_key_file", "tls_ca_file"):
            yield f"node.{key}", getattr(self.node, key)
        if not self.node.make_secret:
            yield "node.secret_file", self.node.secret_file
        for row in rows_of(self.access.rows):
            if row.kind == "token":
                yield "access.rows", row.path
        for key in ("token_file", "tokens_file", "tls_cert_file", "tls_key_file"):
            yield f"control.{key}", getattr(self.control, key)


def read_token(path: Path) -> str:
    """A token file's content. Raises ConfigError when there is none, or when it is empty or readable by others."""
    try:
        with open_regular(path) as file:
            mode, token = os.fstat(file.fileno()).st_mode, whole(file, TOKEN_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token file {path}: {getattr(error, 'strerror', None) or error}") from error
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"token file {path}: a token is one word of at least 16 characters")
    if mode & 0o007:
        raise ConfigError(f"token file {path}: others may read it; chmod o-rwx {path}")
    return token


class _Layers:
    """Raw values with who said them; a later `put` of the same key wins."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Any]] = {name: {} for name in TABLES}
        self.peers: Any = None
        self.origin: dict[str, str] = {}

    def put(self, key: str, value: Any, origin: str) -> None:
        """Sets "table.key" or "peers". Raises ConfigError for a key that does not exist."""
        table, dot, name = key.partition(".")
        if key == "peers":
            self.peers = value
        elif not dot or table not in TABLES or name not in TABLES[table].model_fields:
            hint = "; did you mean the table [peers]?" if name == "peers" else _did_you_mean(key, known_keys())
            raise ConfigError(f"{origin}: unknown key {key}{hint}")
        elif isinstance(value, str) and value.encode(errors="replace").decode() != value:  # no UTF-8: half pairs
            raise ConfigError(f"{origin}: {key}: {value!a} is no text in UTF-8")
        else:
            self.tables[table][name] = value
        self.origin[key] = origin

    def settings(self) -> Settings:
        """The validated whole."""
        built: dict[str, Any] = {name: self._table(name) for name in TABLES}
        built["peers"] = self._peers()
        settings = Settings(**built)
        for key in (*known_keys(), "peers"):
            settings._origin[key] = self.origin.get(key, DEFAULT)
        return settings

    def _table(self, name: str) -> Any:
        try:
            return TABLES[name](**self.tables[name])
        except ValidationError as error:
            first = error.errors()[0]
            message = first["msg"].removeprefix("Value error, ")
            if not first["loc"]:
                raise ConfigError(f"{self._blame(name)}: [{name}] {message}") from error
            key = f"{name}.{first['loc'][0]}"
            said = "" if first["type"] == "value_error" else f" (it says {first['input']!r})"
            raise ConfigError(f"{self.origin.get(key, DEFAULT)}: {key}: {message}{said}") from error

    def _blame(self, table: str) -> str:
        """Who said what a whole-table rule stumbled over: all that is not a default there."""
        said = sorted({origin for key, origin in self.origin.items() if key.startswith(f"{table}.")})
        return ", ".join(said) or DEFAULT

    def _peers(self) -> dict[str, str]:
        if self.peers is None:
            return {}
        try:
            if isinstance(self.peers, str):
                return parse_peers(self.peers)
            if isinstance(self.peers, Mapping) and all(isinstance(value, str) for value in self.peers.values()):
                return check_peers(dict(self.peers))
            raise ValueError('write n0 = "127.0.0.1:20911", or one string "n0-127.0.0.1:20911;n1-…"')
        except ValueError as error:
            raise ConfigError(f"{self.origin['peers']}: peers: {error}") from error


def known_keys() -> list[str]:
    """All dotted keys but "peers", in the order in which the tables name them."""
    return [f"{table}.{name}" for table, model in TABLES.items() for name in model.model_fields]


def load(
    argv_overrides: Mapping[str, Any] | None = None,
    config_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flag_names: Mapping[str, str] | None = None,
) -> Settings:
    """Merges the four places. `argv_overrides`: dotted key (or "peers") -> value; None values are "not given".

    `flag_names` gives the flag to name for a key in messages; the node's flags are known. Raises ConfigError.
    """
    environ = os.environ if environ is None else environ
    if config_file is None and environ.get("QUORUMSCOPE_CONFIG"):
        config_file = Path(environ["QUORUMSCOPE_CONFIG"])
    names = {key: flag for flag, key in NODE_FLAGS.items()} | dict(flag_names or {})
    layers = _Layers()
    if config_file is not None:
        _put_file(layers, config_file)
    _put_environment(layers, environ)
    for key, value in (argv_overrides or {}).items():
        if value is not None:
            layers.put(key, value, f"flag {names.get(key, f'--set {key}')}")
    return layers.settings()


def _put_file(layers: _Layers, path: Path) -> None:
    origin = f"file {path}"
    try:
        parsed = tomllib.loads(read_regular(path, CONFIG_BYTES_MAX).decode())
    except OSError as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise ConfigError(f"{origin}: {why}") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, not UTF-8, a number of thousands of digits
        raise ConfigError(f"{origin}: {error}") from error
    for table, content in parsed.items():
        if table == "peers":
            layers.put("peers", content, origin)
        elif table not in TABLES:
            known = [f"[{name}]" for name in (*TABLES, "peers")]
            raise ConfigError(f"{origin}: unknown table [{table}]{_did_you_mean(f'[{table}]', known)}")
        elif not isinstance(content, dict):
            raise ConfigError(f"{origin}: {table} is a table: write [{table}] and its keys below")
        else:
            for name, value in content.items():
                layers.put(f"{table}.{name}", value, origin)


def _put_environment(layers: _Layers, environ: Mapping[str, str]) -> None:
    known = {f"{PREFIX}PEERS": "peers"}
    for key in known_keys():
        table, _, name = key.partition(".")
        known[f"{PREFIX}{table}__{name}".upper()] = key
        known[f"{PREFIX}{table}_{name}".upper()] = key
    for variable in sorted(name for name in environ if name.startswith(PREFIX) and name not in OTHER_VARIABLES):
        if variable not in known:
            listed = [name for name in known if "__" in name or name == f"{PREFIX}PEERS"] + list(OTHER_VARIABLES)
            raise ConfigError(f"unknown variable {variable}{_did_you_mean(variable, listed)}")
        layers.put(known[variable], environ[variable], f"variable {variable}")


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""


def parse_node_arguments(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """The command line of `python -m node`, `node.server` and `node.control`, checked. Raises ConfigError."""
    return read_again(arguments, environ).check_node()


def read_again(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """The same in a process that runs, where the files that it names are read, and judged, each for itself."""
    overrides: dict[str, Any] = {}
    config_file: Path | None = None
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        flag, equals, value = word.partition("=")
        if flag == "--exit-with-engine":
            continue
        if flag in SWITCHES:
            overrides[NODE_FLAGS[flag]] = value or "true"
            continue
        if flag not in NODE_FLAGS and flag not in ("--config", "--set"):
            raise ConfigError(f"unknown argument {word}{_did_you_mean(flag, [*NODE_FLAGS, '--config', '--set'])}")
        if not equals:
            if not waiting:
                raise ConfigError(f"{flag} needs a value")
            value = waiting.pop(0)
        if flag == "--config":
            config_file = Path(value)
        elif flag == "--set":
            key, setting = parse_set(value)
            overrides[key] = setting
        else:
            overrides[NODE_FLAGS[flag]] = value
    return load(overrides, config_file, environ).check_tables()


def parse_set(text: str) -> tuple[str, str]:
    """ "table.key=value" of `--set` as (key, value). Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: write TABLE.KEY=VALUE")
    return key.strip(), value.strip()
