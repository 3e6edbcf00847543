"""Everything the gateway can be told from outside, one frozen dataclass per subsystem; read by `cli/` and `create_app`.

Nothing is read at import: `Settings.from_env` does it once; a malformed value stops start-up with its variable's name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from gateway.errors import SettingsError
from gateway.logs import redact

DEFAULT_POLICY = Path(__file__).resolve().parent.parent / "policies" / "default.yaml"
T = TypeVar("T")
_HIDDEN = frozenset({"BREAKEVEN_SECRET"})
"""Variables whose value no message repeats."""


def _text(value: str) -> str:
    return value.strip()


def _secret(value: str) -> str:
    if 0 < len(value.strip()) < 16:
        raise ValueError
    return value.strip()


def _path(value: str) -> Path:
    if not value.strip():
        raise ValueError
    return Path(value).expanduser()


def _optional_path(value: str) -> Path | None:
    return Path(value).expanduser() if value.strip() else None


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(value: str) -> float:
        number = float(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def _optional_whole(low: int, high: int) -> Callable[[str], int | None]:
    parse = _whole(low, high)
    return lambda value: parse(value) if value.strip() else None


def _url(*schemes: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        scheme, colon, _ = value.partition(":")
        if value and not (colon and scheme.partition("+")[0] in schemes):
            raise ValueError
        return value.rstrip("/") if value.startswith("http") else value

    return parse


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.strip() not in allowed:
            raise ValueError
        return value.strip()

    return parse


def env(variable: str, parse: Callable[[str], object], expects: str) -> dict[str, object]:
    """Return a field's metadata: the variable that sets it, how it is read, what a malformed value is told."""
    return {"env": variable, "parse": parse, "expects": expects}


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where the gateway listens and keeps its files."""

    host: str = field(default="127.0.0.1", metadata=env("BREAKEVEN_HOST", _text, "a host name or address"))
    """Any address off loopback needs at least one API key."""
    port: int = field(
        default=8000, metadata=env("BREAKEVEN_PORT", _whole(0, 65535), "a port from 0 to 65535 (0: any free one)")
    )
    data_dir: Path = field(default=Path(".breakeven"), metadata=env("BREAKEVEN_DATA_DIR", _path, "a folder"))
    """Spool, SQLite file and cached keys."""
    max_body_bytes: int = field(
        default=32 << 20,
        metadata=env("BREAKEVEN_MAX_BODY_BYTES", _whole(1 << 10, 1 << 30), "bytes from 1024 to 1073741824"),
    )
    """A larger request body is answered with 413."""
    secret: str = field(
        default="",
        metadata=env("BREAKEVEN_SECRET", _secret, "16 characters at least, or empty for the file in the data folder"),
    )
    """Key of all keyed hashes (end users, conversations, draws): gateways of one fleet need the same."""
    drain_s: float = field(default=30.0, metadata=env("BREAKEVEN_DRAIN_S", _number(0, 3600), "seconds from 0 to 3600"))
    """How long running answers may go on after SIGTERM."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where live statistics and records go. A store that is away never delays or fails a request."""

    redis_url: str = field(
        default="",
        metadata=env(
            "BREAKEVEN_REDIS_URL",
            _url("redis", "rediss", "unix"),
            "redis://, rediss:// or unix:// URL, or empty for none",
        ),
    )
    database_url: str = field(
        default="",
        metadata=env(
            "BREAKEVEN_DATABASE_URL", _url("sqlite", "postgresql"), "sqlite or postgresql URL, or empty for SQLite"
        ),
    )
    """Empty: SQLite under the data folder."""
    redis_timeout_s: float = field(
        default=0.05, metadata=env("BREAKEVEN_REDIS_TIMEOUT_S", _number(0.001, 10), "seconds from 0.001 to 10")
    )
    """The rate limiter waits this long at most and then lets the request through."""


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """How the gateway talks to the engines behind it; a policy's backends add their own patience and limits."""

    engine_url: str = field(
        default="http://127.0.0.1:8100", metadata=env("BREAKEVEN_ENGINE_URL", _url("http", "https"), "an http(s) URL")
    )
    """Backend of the default policy; a policy's own `url` wins."""
    engine_token: str = field(default="", metadata=env("BREAKEVEN_ENGINE_TOKEN", _text, "a token"))
    """Sent to engines as a bearer token; an engine off loopback demands one."""
    keepalive_s: float = field(
        default=4.0, metadata=env("BREAKEVEN_KEEPALIVE_S", _number(0, 3600), "seconds from 0 to 3600")
    )
    """Idle connections are dropped after this: uvicorn and vLLM close theirs at 5 s."""
    poll_s: float = field(default=1.0, metadata=env("BREAKEVEN_POLL_S", _number(0.05, 60), "seconds from 0.05 to 60"))
    """Health, load and costs are read this often, in the background."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """Which policy and classifier are used at start."""

    path: Path = field(default=DEFAULT_POLICY, metadata=env("BREAKEVEN_POLICY", _path, "a policy file"))
    classifier: Path | None = field(
        default=None, metadata=env("BREAKEVEN_CLASSIFIER", _optional_path, "a classifier artefact, or empty")
    )
    """Empty: the policy's artefact, else the shipped one."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits of keys that have none of their own."""

    requests_per_minute: int | None = field(
        default=None,
        metadata=env(
            "BREAKEVEN_REQUESTS_PER_MINUTE", _optional_whole(1, 10**9), "a whole number from 1, or empty for none"
        ),
    )
    tokens_per_minute: int | None = field(
        default=None,
        metadata=env(
            "BREAKEVEN_TOKENS_PER_MINUTE", _optional_whole(1, 10**12), "a whole number from 1, or empty for none"
        ),
    )


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """What the gateway tells about itself besides `/metrics`."""

    otlp_endpoint: str = field(
        default="", metadata=env("BREAKEVEN_OTLP_ENDPOINT", _url("http", "https"), "an http(s) URL, or empty for none")
    )
    """An OpenTelemetry collector (OTLP over HTTP), such as http://127.0.0.1:4318; needs the extra `telemetry`."""
    log_format: str = field(
        default="text", metadata=env("BREAKEVEN_LOG_FORMAT", _one_of("text", "json"), "text or json")
    )
    """Lines for people, or one JSON object a line."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All of them; the argument of `create_app`."""

    server: ServerSettings = field(default_factory=ServerSettings)
    stores: StoreSettings = field(default_factory=StoreSettings)
    backends: BackendSettings = field(default_factory=BackendSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)

    GROUPS: ClassVar[dict[str, type[Any]]] = {
        "server": ServerSettings,
        "stores": StoreSettings,
        "backends": BackendSettings,
        "policy": PolicySettings,
        "limits": LimitSettings,
        "telemetry": TelemetrySettings,
    }

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Settings:
        """Read all settings; `overrides` (command-line options, by field name, None is absent) win.

        Raises:
            SettingsError: a value is malformed; names the variable and what was expected.
        """
        variables = os.environ if environ is None else environ
        given = {name: value for name, value in overrides.items() if value is not None}
        groups = {name: _read(group, variables, given) for name, group in cls.GROUPS.items()}
        if given:
            raise TypeError(f"unknown settings: {', '.join(sorted(given))}")
        return cls(**groups)

    @property
    def database_url(self) -> str:
        """The database to use: as given, else SQLite under the data folder."""
        return self.stores.database_url or f"sqlite+aiosqlite:///{self.server.data_dir / 'breakeven.db'}"


def _read(group: type[T], variables: Mapping[str, str], given: dict[str, Any]) -> T:
    """Build one group; takes what it uses out of `given`."""
    values: dict[str, Any] = {}
    for declared in fields(group):  # type: ignore[arg-type]  # every group is a dataclass
        variable = declared.metadata["env"]
        if declared.name in given:
            values[declared.name] = given.pop(declared.name)
        elif variable in variables:
            try:
                values[declared.name] = declared.metadata["parse"](variables[variable])
            except ValueError:
                expected = declared.metadata["expects"]
                said = "" if variable in _HIDDEN else f"={redact(variables[variable])!r}"
                raise SettingsError(f"{variable}{said}: expected {expected}") from None
    return group(**values)
