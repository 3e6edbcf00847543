"""Finds a Chromium for the browser tests, or installs one: `python -m tests.browser` (called by `make browser`).

In this order: `BREAKEVEN_CHROMIUM`, a browser on PATH, playwright's own, `playwright install chromium`, and Debian's
package where this runs as root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""No call home, and nothing that a container lacks."""
HELP = """No Chromium for the browser tests was found, and none could be installed. Any of these will do:
  - install one so that `chromium` or `google-chrome` is on PATH (Debian: apt-get install chromium)
  - .venv/bin/playwright install --with-deps chromium
  - set BREAKEVEN_CHROMIUM to a browser's path"""


def find() -> str | None:
    """Return the path of a Chromium that is there."""
    given = os.environ.get("BREAKEVEN_CHROMIUM")
    if given:
        return given if Path(given).is_file() else None
    for name in NAMES:
        if path := shutil.which(name):
            return path
    return _playwrights_own()


def _playwrights_own() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).is_file() else None


def install() -> None:
    """Try playwright's download, then Debian's package; failures are told, and the next way is tried."""
    ways = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        ways.append(["apt-get", "update", "-qq"])
        ways.append(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"])
    for command in ways:
        if find() is not None:
            return
        print("+", *command, flush=True)
        try:
            done = subprocess.run(command, timeout=600, check=False, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"  {error}", file=sys.stderr)
            continue
        if done.returncode:
            print(f"  ended with {done.returncode}", file=sys.stderr)


def main() -> int:
    """Find or install, and say which one it is."""
    if find() is None:
        install()
    path = find()
    print(path or HELP, file=sys.stdout if path else sys.stderr)
    return 0 if path else 1


if __name__ == "__main__":
    raise SystemExit(main())
