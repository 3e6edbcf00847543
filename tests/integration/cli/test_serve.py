"""`breakeven serve` under attack: whichever process is killed and how, nothing is orphaned, delayed or lost."""

import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from cli.serve import answers
from gateway.db import Database
from tests.fixtures.ports import free_port
from tests.fixtures.servers import scripted_upstream, wait_until

BREAKEVEN = str(Path(sys.executable).with_name("breakeven"))
POLICY = """
version: 1
tasks: default
backends:
  plain: {{kind: vllm, url: "{url}", model: m, arms: plain}}
  spec: {{kind: vllm, url: "{url}", model: m, arms: eagle-k3}}
rules:
  - name: everything
    path: auto
"""


class Serve:
    """One `breakeven serve`, its output and its children."""

    def __init__(self, data_dir, *options, **env):
        self.data_dir, self.port, self.asked = data_dir, free_port(), 0
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = data_dir.with_name(f"serve-{self.port}.log")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BREAKEVEN_")}
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [BREAKEVEN, "serve", "--port", str(self.port), "--data-dir", str(data_dir), *options],
                env=kept | {"HF_HUB_OFFLINE": "1"} | env, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    @property
    def output(self):
        return self.log.read_text("utf-8", "replace")

    def child(self, mark):
        """The child whose command line holds `mark`."""
        for process in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.Error):
                if mark in " ".join(process.cmdline()):
                    return process
        return None

    def family(self):
        """Everything it started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def until_ready(self):
        wait_until(lambda: "Breakeven is ready" in self.output or self.process.poll() is not None, 120)
        assert self.process.poll() is None, self.output

    def stores(self):
        with urllib.request.urlopen(f"{self.url}/readyz", timeout=60) as response:
            return json.load(response)["stores"]

    def ask(self, model="m"):
        """Send one request; returns the decision's reason and the seconds it took."""
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        began = time.monotonic()
        with urllib.request.urlopen(request, timeout=60) as response:
            json.load(response)
            self.asked += 1
            return response.headers["x-breakeven-reason"], time.monotonic() - began

    def delivered(self, store):
        return next(sink["delivered"] for sink in self.stores()["recorder"]["sinks"] if sink["name"] == store)

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture
def start(tmp_path):
    started = []

    def make(*options, name="data", **env):
        started.append(Serve(tmp_path / name, *options, **env))
        return started[-1]

    yield make
    for served in started:
        served.end(signal.SIGKILL)


@pytest.fixture
def policy(tmp_path):
    """A policy whose only backend is a server in this process, so that no engine is started."""
    with scripted_upstream() as upstream:
        path = tmp_path / "policy.yaml"
        path.write_text(POLICY.format(url=upstream.url))
        yield str(path)


def stored(data_dir):
    """Requests in the database's roll-ups."""

    async def count():
        database = Database(f"sqlite:///{data_dir / 'breakeven.db'}")
        summary = await database.window(0)
        await database.aclose()
        return sum(group.sums.requests for group in summary.activity)

    return asyncio.run(count())


def gone(processes):
    """Wait until these processes have ended (a zombie has)."""

    def lives(process):
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # between the two
            return False

    wait_until(lambda: not any(map(lives, processes)))


def test_redis_frozen_killed_and_back_while_serving(start, policy):
    served = start("--policy", policy)
    served.until_ready()
    served.ask()
    wait_until(lambda: served.delivered("redis") == 1 and served.delivered("database") == 1)
    redis = served.child("valkey-server")
    healthy = [served.ask()[1] for _ in range(11)]
    redis.suspend()
    times = [served.ask()[1] for _ in range(20)]
    wait_until(lambda: "stale" in served.ask()[0])
    times.append(served.ask()[1])
    assert statistics.median(times) < 10 * statistics.median(healthy)  # no request waits for a store's timeout
    assert not served.stores()["redis"]["ok"]
    redis.resume()
    wait_until(lambda: served.stores()["redis"]["ok"] and "stale" not in served.ask()[0])
    redis.kill()
    served.ask()
    wait_until(lambda: "redis is ready again" in served.output)
    sent = served.asked
    wait_until(lambda: served.delivered("redis") >= sent and served.delivered("database") >= sent)
    family = served.family()
    assert served.end() == 0
    gone(family)
    assert list((served.data_dir / "spool").iterdir()) == []
    assert stored(served.data_dir) == sent


def test_killing_serve_leaves_no_orphan_and_the_folder_can_be_used_again(start, policy):
    served = start("--policy", policy)
    served.until_ready()
    served.ask()
    wait_until(lambda: served.delivered("redis") == 1 and served.delivered("database") == 1)
    family = served.family()
    assert len(family) == 2
    served.process.kill()
    gone(family)
    served.process.wait()
    again = start("--policy", policy)
    again.until_ready()
    again.ask()
    gateway = again.child("cli.main gateway")
    gateway.kill()
    wait_until(lambda: "gateway is ready again" in again.output)
    wait_until(lambda: answers("127.0.0.1", again.port, "/readyz"))
    again.ask()
    assert again.child("cli.main gateway").pid != gateway.pid
    family = again.family()
    assert again.end(signal.SIGINT) == 0
    gone(family)
    assert stored(served.data_dir) in (2, 3)  # the killed gateway may take the last quarter of a second with it


@pytest.mark.verify
def test_a_killed_engine_is_started_again(start, tiny_model_dir):
    served = start("--model", str(tiny_model_dir), "--dtype", "float32")
    served.until_ready()
    served.ask(tiny_model_dir.name)
    served.child("-m engine").kill()
    wait_until(lambda: "engine is ready again" in served.output)
    wait_until(lambda: answers("127.0.0.1", served.port, "/readyz"))
    served.ask(tiny_model_dir.name)
    family = served.family()
    assert served.end() == 0
    gone(family)


def test_stores_that_are_away_at_the_start_are_said_and_do_not_matter(start, policy, tmp_path):
    served = start(
        "--policy", policy, BREAKEVEN_REDIS_URL=f"unix://{tmp_path}/none.sock",
        BREAKEVEN_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none",
    )  # fmt: skip
    served.until_ready()
    assert "redis: not reachable, starting anyway" in served.output
    assert "database: not ready, starting anyway" in served.output
    served.ask()
    stores = served.stores()
    assert not stores["redis"]["ok"]
    assert not stores["database"]["ok"]
    wait_until(lambda: [sink["pending"] for sink in served.stores()["recorder"]["sinks"]] == [1, 1])
    assert served.end() == 0
    assert any((served.data_dir / "spool").iterdir())


@pytest.mark.verify
def test_given_redis_and_postgresql_are_used(start, policy, genuine_redis_url, postgres_url):
    served = start("--policy", policy, BREAKEVEN_REDIS_URL=genuine_redis_url, BREAKEVEN_DATABASE_URL=postgres_url)
    served.until_ready()
    assert served.child("valkey-server") is None
    served.ask()
    wait_until(lambda: served.delivered("redis") == 1 and served.delivered("database") == 1)
    assert not (served.data_dir / "breakeven.db").exists()
    assert served.end() == 0


@pytest.mark.verify
def test_a_frozen_postgresql_at_the_start_is_said(start, policy, postgres_server):
    postgres_server.signal_all(signal.SIGSTOP)
    served = start("--policy", policy, BREAKEVEN_DATABASE_URL=postgres_server.url)
    served.until_ready()
    assert "database: not ready, starting anyway" in served.output
    served.ask()
    postgres_server.signal_all(signal.SIGCONT)
    wait_until(lambda: served.delivered("database") == 1)
    assert served.end() == 0
