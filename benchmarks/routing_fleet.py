"""A fleet's day: eight gateways with the live decision, servers with queues and memory, a draft that dies and returns.

Run: python -m benchmarks routing_fleet (minutes). It is `breakeven simulate --fleet` with nothing but its defaults.
Limits: at most 5 minutes; no flapping (no turn of traffic that no event explains, incumbents that stay); no herd
(queues no longer than those of the best fixed share, although all gateways change their mind within a second).
"""

from __future__ import annotations

import json
import sys

from cli.simulation.fleet.report import simulate_fleet

OPTIONS = {"method": "draft_model", "draft_lengths": (4,), "traces": None, "costs": None, "cap": 1024}


def main() -> None:
    """Print the figures: as one line with `--json`, else indented."""
    sys.stdout.write(json.dumps(simulate_fleet(OPTIONS), indent=None if "--json" in sys.argv else 1) + "\n")


if __name__ == "__main__":
    main()
