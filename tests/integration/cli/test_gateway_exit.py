"""An operations page left open does not hold up the gateway's exit."""

from __future__ import annotations

import signal
import subprocess
import urllib.request

from tests.e2e.served import BREAKEVEN, clean_environment
from tests.fixtures.ports import free_port
from tests.fixtures.servers import wait_until


def test_an_open_page_does_not_hold_up_the_exit(tmp_path):
    port, log = free_port(), tmp_path / "log"
    command = [BREAKEVEN, "gateway", "--port", str(port), "--data-dir", str(tmp_path / "data")]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=clean_environment(), stdout=out, stderr=out)
    try:
        wait_until(lambda: b"startup complete" in log.read_bytes())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ops/events", timeout=60) as stream:
            assert stream.readline().startswith(b"retry:")
            process.send_signal(signal.SIGTERM)
            stream.read()  # to its end
        assert process.wait(60) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
    assert b"graceful shutdown exceeded" not in log.read_bytes()
