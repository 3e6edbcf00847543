"""The decision before two llama.cpp servers, one of them with prompt lookup: the demo's mix routed and fixed, in turns.

Run: python -m benchmarks llamacpp_routing. The servers are llama.cpp's own, from the wheel that the tests use, one
thread each and one request at a time, so that they do not get in each other's way. Figures as `live_routing` has them.
The two paths differ by a few per cent, which takes some thirty requests of each task to tell: it learns for longer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gateway_overhead import free_port, process, wait_for
from benchmarks.live_routing import case
from cli.embedded_redis import EmbeddedRedis
from tests.fixtures.llamacpp import GGUF, llama_server

ARM = "spec/ngram-k4"
LEARNING_S, BUDGET_S = 200.0, 400.0
"""Of routed traffic first, and in all."""
POLICY = """version: 1
tasks: default
backends:
  spec: {{kind: llamacpp, url: "{spec}", arms: ngram-k4}}
  plain: {{kind: llamacpp, url: "{plain}", arms: plain}}
rules:
  - {{name: everything, probe: 3%, holdout: 1%}}
"""


def measure() -> dict[str, Any]:
    """Start both servers and a gateway, measure at concurrency 1, and end them."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryDirectory(prefix="llamacpp-routing-") as folder,
        llama_server(GGUF, "--ngram", "4") as (spec, _),
        llama_server(GGUF) as (plain, _),
    ):
        policy = Path(folder) / "policy.yaml"
        policy.write_text(POLICY.format(spec=spec, plain=plain), encoding="utf-8")
        redis = EmbeddedRedis(Path(folder))
        redis.prepare()
        gateway = [sys.executable, "-m", "cli.main", "gateway", "--port", str(port), "--policy", str(policy)]
        gateway += ["--data-dir", folder, "--redis-url", redis.url]
        with process(*redis.command()), process(*gateway) as server:
            wait_for(f"{url}/readyz", server)
            return asyncio.run(case(url, 1, ARM, learning_s=LEARNING_S, budget_s=BUDGET_S))


def main() -> None:
    """Print the figures: as one line with `--json`, else indented."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line")
    args = parser.parse_args()
    sys.stdout.write(json.dumps(measure(), indent=None if args.json else 1) + "\n")


if __name__ == "__main__":
    main()
