"""Runs benchmarks and keeps their results: `python -m benchmarks [NAME…]` (called by `make bench`).

A benchmark is a module of this folder that prints one JSON object as its last line when run as
`python -m benchmarks.NAME --json`. Each runs in a process of its own; what it printed is written to
`benchmarks/results/NAME.json` with the machine, the commit and the load at the time. `--only` names cases of one
benchmark that takes it; their figures replace the kept ones of those names, and `measured` says when each was taken.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
PACKAGES = ("torch", "transformers", "numpy", "litestar", "uvicorn", "aiohttp", "msgspec", "sqlalchemy", "redis")


def available() -> dict[str, str]:
    """Return the benchmarks that are here, with the first line of what they say of themselves."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        if not path.stem.startswith("_") and '"--json"' in source and '__name__ == "__main__"' in source:
            found[path.stem] = source.partition('"""')[2].partition("\n")[0].removesuffix('"""')
    return found


def environment() -> dict[str, Any]:
    """Return what the figures depend on besides the code."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), ""
    )
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    return {
        "cpu": cpu or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory) / 2**20, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def commit() -> str:
    """Return the commit that is checked out, with a plus where tracked code differs from it."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def run(name: str, only: str | None = None, clock: str | None = None) -> bool:
    """Run one benchmark, or some cases of it, write its results, and say whether it succeeded."""
    print(f"== {name}", flush=True)
    before, began = os.getloadavg(), time.time()
    command = [
        sys.executable,
        "-m",
        f"benchmarks.{name}",
        "--json",
        *(("--only", only) if only else ()),
        *(("--clock", clock) if clock else ()),
    ]
    done = subprocess.run(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True, check=False, env=_passive())
    lines = done.stdout.strip().splitlines()
    try:
        figures = json.loads(lines[-1]) if lines else None
    except ValueError:
        figures = None
    if done.returncode or not isinstance(figures, dict):
        print(f"   failed with {done.returncode}; no results written", file=sys.stderr, flush=True)
        return False
    run_of = {
        "commit": commit(),
        "at": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        "seconds": round(time.time() - began, 1),
        "load_average": {"before": round(before[0], 2), "after": round(os.getloadavg()[0], 2)},
    }
    kept = {"name": name, **run_of, "environment": environment(), "figures": figures}
    if only:
        kept = _merged(kept, run_of)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for figure, value in figures.items():
        print(f"   {figure:40} {value if not isinstance(value, dict | list) else json.dumps(value)[:100]}")
    return True


def _passive() -> dict[str, str]:
    """Our environment, with torch threads that sleep while they wait, as the engine's own command sets it."""
    return {"OMP_WAIT_POLICY": "passive", **os.environ}


def _merged(kept: dict[str, Any], run_of: dict[str, Any]) -> dict[str, Any]:
    """Add the cases measured now to those kept, each with the run that it comes from."""
    path = RESULTS / f"{kept['name']}.json"
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    measured = known.get("measured", {}) | dict.fromkeys(kept["figures"], run_of)
    return kept | {"figures": known.get("figures", {}) | kept["figures"], "measured": measured}


def main() -> int:
    """Run those named, or all."""
    known = available()
    listed = "\n".join(f"  {name:24} {what}" for name, what in known.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", epilog=f"benchmarks:\n{listed}", formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones (default: all)")
    parser.add_argument("--only", metavar="CASES", help="some cases of one benchmark, by commas (engine_speed)")
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], help="what engine_speed counts: seconds, or those on the CPU"
    )
    args = parser.parse_args()
    names = args.names or list(known)
    if (args.only or args.clock) and len(args.names) != 1:
        parser.error(f"--only, --clock: expected with the name of one benchmark, got {len(args.names)} names")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no benchmark {', '.join(unknown)}; expected one of {', '.join(known)}")
    failed = [name for name in names if not run(name, args.only, args.clock)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=HERE.parent, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
