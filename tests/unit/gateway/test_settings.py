"""Settings: environment, defaults, options that win, and malformed values that stop start-up."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import SettingsError
from gateway.settings import Settings


def test_defaults_need_no_environment() -> None:
    settings = Settings.from_env({})
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8000)
    assert settings.policy.path.name == "default.yaml"
    assert settings.policy.path.exists()
    assert settings.database_url == "sqlite+aiosqlite:///.breakeven/breakeven.db"
    assert settings.limits.requests_per_minute is None


def test_the_environment_is_read_and_options_win() -> None:
    env = {
        "BREAKEVEN_PORT": "9000", "BREAKEVEN_DATA_DIR": "/tmp/x", "BREAKEVEN_REDIS_URL": "redis://r:6379/0",
        "BREAKEVEN_DATABASE_URL": "postgresql://p/db", "BREAKEVEN_REQUESTS_PER_MINUTE": "60",
        "BREAKEVEN_ENGINE_URL": "http://e:1/", "BREAKEVEN_TOKENS_PER_MINUTE": "",
    }  # fmt: skip
    settings = Settings.from_env(env, port=7, host=None)
    assert (settings.server.port, settings.server.host) == (7, "127.0.0.1")
    assert settings.server.data_dir == Path("/tmp/x")
    assert settings.database_url == "postgresql://p/db"
    assert settings.backends.engine_url == "http://e:1"
    assert (settings.limits.requests_per_minute, settings.limits.tokens_per_minute) == (60, None)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("BREAKEVEN_PORT", "http", "a port from 0 to 65535"),
        ("BREAKEVEN_PORT", "70000", "a port from 0 to 65535"),
        ("BREAKEVEN_REDIS_URL", "localhost:6379", "redis://"),
        ("BREAKEVEN_DATABASE_URL", "mysql://x", "sqlite or postgresql URL"),
        ("BREAKEVEN_ENGINE_URL", "ftp://x", "http"),
        ("BREAKEVEN_KEEPALIVE_S", "soon", "seconds"),
        ("BREAKEVEN_KEEPALIVE_S", "nan", "seconds"),
        ("BREAKEVEN_REQUESTS_PER_MINUTE", "0", "a whole number from 1"),
        ("BREAKEVEN_MAX_BODY_BYTES", "1", "bytes from 1024"),
        ("BREAKEVEN_DATA_DIR", " ", "a folder"),
    ],
)
def test_a_malformed_value_names_its_variable(variable: str, value: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({variable: value})
    assert variable in str(caught.value)
    assert repr(value) in str(caught.value)
    assert expected in str(caught.value)


def test_no_message_repeats_a_secret() -> None:
    for variable, value in (("BREAKEVEN_SECRET", "short"), ("BREAKEVEN_DATABASE_URL", "mysql://u:hunter22@h/db")):
        with pytest.raises(SettingsError, match=variable) as caught:
            Settings.from_env({variable: value})
        assert "short" not in str(caught.value)
        assert "hunter22" not in str(caught.value)
    assert Settings.from_env({"BREAKEVEN_SECRET": " 0123456789abcdef "}).server.secret == "0123456789abcdef"


def test_an_unknown_option_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        Settings.from_env({}, colour="red")
