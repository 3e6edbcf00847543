"""One served instance with a tiny random model for all end-to-end tests, and one browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import browser
from tests.e2e.served import Served, serve


@pytest.fixture(scope="package")  # ends before the other tests, whose processor time it would take
def served(tiny_model_dir: Path, tiny_draft_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`breakeven serve` with the tiny target and draft in fp32, stores and all."""
    data_dir = tmp_path_factory.mktemp("served") / "data"
    environment = {"BREAKEVEN_MODEL": str(tiny_model_dir), "BREAKEVEN_DRAFT_MODEL": str(tiny_draft_dir)}
    with serve(data_dir, "--dtype", "float32", **environment) as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    """A headless browser; the tests that need one say how to get it where none is found.

    Not for the session: playwright keeps an event loop running in this thread, which asynchronous tests could not bear.
    """
    from playwright.sync_api import sync_playwright

    path = browser.find()
    assert path is not None, browser.HELP
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(browser.FLAGS), timeout=120_000)
        yield launched
        launched.close()
