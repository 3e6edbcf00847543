"""Waits for the operations page to be live, by its text: the page lets no script evaluate one."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect


def until_live(page: Page) -> None:
    """Return once the page's events arrive."""
    expect(page.locator("#live-state")).to_have_text(re.compile("^live"), timeout=90_000)
