"""`breakeven serve` as a subprocess: what a newcomer runs, on a free port and in a fresh data folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.fixtures.ports import free_port

BREAKEVEN = str(Path(sys.executable).with_name("breakeven"))


@dataclass
class Served:
    """A running `breakeven serve`."""

    url: str
    data_dir: Path
    process: subprocess.Popen[bytes]
    log: Path

    def breakeven(self, *arguments: str, timeout: float = 200.0) -> subprocess.CompletedProcess[str]:
        """Run another command of the same installation, with the same data folder."""
        env = clean_environment() | {"BREAKEVEN_DATA_DIR": str(self.data_dir), "BREAKEVEN_URL": self.url}
        return subprocess.run(
            [BREAKEVEN, *arguments], env=env, capture_output=True, text=True, timeout=timeout, check=False
        )

    def children(self) -> list[psutil.Process]:
        """All processes below it."""
        return psutil.Process(self.process.pid).children(recursive=True)


def clean_environment() -> dict[str, str]:
    """The environment without settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BREAKEVEN_", "OPENAI_"))}
    models = {"BREAKEVEN_MODELS_DIR": value} if (value := os.environ.get("BREAKEVEN_MODELS_DIR")) else {}
    return kept | models | {"HF_HUB_OFFLINE": "1"}


@contextlib.contextmanager
def serve(data_dir: Path, *options: str, ready_s: float = 200.0, **environment: str) -> Iterator[Served]:
    """Run `breakeven serve` for the length of a block, until it is ready; end it as Ctrl-C would."""
    port = free_port()
    log = data_dir.parent / f"{data_dir.name}.log"
    command = [BREAKEVEN, "serve", "--port", str(port), "--data-dir", str(data_dir), *options]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=clean_environment() | environment, stdout=out, stderr=out, start_new_session=True
        )
    served = Served(f"http://127.0.0.1:{port}", data_dir, process, log)
    try:
        wait_ready(served, ready_s)
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_ready(served: Served, seconds: float) -> None:
    """Wait for `/readyz`; fail with the log where it does not come or the process ends."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{served.url}/readyz", timeout=60):
            return  # an error status raises HTTPError, which is an OSError
        tail = served.log.read_text(errors="replace")[-4000:]
        assert served.process.poll() is None, f"serve ended with {served.process.returncode}:\n{tail}"
        assert time.monotonic() < deadline, f"not ready after {seconds:.0f} s:\n{tail}"
        time.sleep(0.1)
