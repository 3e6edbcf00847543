"""Fixtures shared by all tests; each subsystem keeps its own in `tests/fixtures/`."""

pytest_plugins = ["tests.fixtures.models", "tests.fixtures.stores", "tests.fixtures.servers", "tests.fixtures.policies"]
