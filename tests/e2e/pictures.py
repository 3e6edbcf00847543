"""Takes the pictures in docs/images from a gateway that has seen traffic: `python -m tests.e2e.pictures [URL]`."""

from __future__ import annotations

import sys

from playwright.sync_api import sync_playwright

from tests import browser
from tests.e2e.live import until_live
from tests.repo.tree import ROOT

PICTURES = (("ops", "light", 1280, 1240), ("ops-dark", "dark", 1280, 1240), ("ops-phone", "light", 360, 740))
"""Name, colour scheme, width and height in pixels."""


def main(url: str = "http://127.0.0.1:8000") -> None:
    """Write docs/images/*.png."""
    path = browser.find()
    if path is None:
        raise SystemExit(browser.HELP)
    folder = ROOT / "docs" / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(browser.FLAGS))
        for name, scheme, width, height in PICTURES:
            page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(f"{url}/ops")
            until_live(page)
            page.screenshot(path=folder / f"{name}.png")
            print(folder / f"{name}.png")
        chromium.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
