"""Fixtures shared by all tests; each subsystem keeps its own in `tests/fixtures/`."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [f"tests.fixtures.{name}" for name in ("models", "gguf", "stores", "servers", "policies")]

# The same examples every time, however long one takes: a machine that is busy for a moment proves nothing.
settings.register_profile("even", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("even")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`, keep the files that share a server in one process."""
    from tests.fixtures.together import Together

    return Together(config, log) if config.getvalue("dist") == "loadfile" else None
