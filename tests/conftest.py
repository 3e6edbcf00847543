"""Fixtures shared by all tests; each subsystem keeps its own in `tests/fixtures/`."""

from hypothesis import HealthCheck, settings

pytest_plugins = [f"tests.fixtures.{name}" for name in ("models", "gguf", "stores", "servers", "policies")]

# The same examples every time, however long one takes: a machine that is busy for a moment proves nothing.
settings.register_profile("even", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("even")
