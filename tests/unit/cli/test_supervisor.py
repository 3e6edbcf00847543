"""The supervisor with small children: restarted, ended, never outliving it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cli.supervisor import ChildSpec, Supervisor

SLEEP = [sys.executable, "-S", "-c", "import time; print('up'); time.sleep(600)"]
STUBBORN = [
    sys.executable, "-S", "-c",
    "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); time.sleep(600)",
]  # fmt: skip

SILENT = [STUBBORN[0], "-S", "-c", STUBBORN[-1].replace("print('up'); ", "")]
"""Without output: nothing but the tether may end it, not even a broken pipe."""


async def yes():
    return True


async def never():
    return False


@pytest.fixture
async def supervisor():
    said = []
    made = Supervisor(said.append)
    made.said = said
    yield made
    await made.stop()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_killed_child_is_started_again(supervisor):
    child = supervisor.add(ChildSpec("worker", SLEEP, yes))
    await child.ready.wait()
    first = child.process.pid
    child.process.kill()
    await until(lambda: "worker is ready again" in supervisor.said)
    assert child.process.pid != first
    assert "worker ended (killed by SIGKILL); starting it again in 0.5 s" in supervisor.said
    assert not supervisor.ended


async def test_a_needed_child_that_cannot_start_ends_everything_and_says_why(supervisor):
    command = [sys.executable, "-S", "-c", "import sys; print('no model'); sys.exit(3)"]
    supervisor.add(ChildSpec("worker", command, never))
    await asyncio.wait_for(supervisor.wait(), 60)
    assert supervisor.failure == "worker could not start (exit status 3): no model"
    assert "worker | no model" in supervisor.said


async def test_a_missing_program_is_said(supervisor):
    supervisor.add(ChildSpec("worker", ["/nonexistent/program"], never))
    await asyncio.wait_for(supervisor.wait(), 60)
    assert "worker could not start (exit status 1)" in supervisor.failure
    assert any("/nonexistent/program" in line for line in supervisor.said)


async def test_an_optional_child_that_cannot_start_is_tried_again(supervisor):
    command = [sys.executable, "-S", "-c", "print('broken'); raise SystemExit(1)"]
    supervisor.add(ChildSpec("extra", command, never, needed=False, quiet=True))
    await until(lambda: len(supervisor.said) >= 2)
    assert supervisor.said[0] == "extra ended (exit status 1: broken); starting it again in 0.5 s"
    assert "in 1 s" in supervisor.said[1]
    assert not supervisor.ended


async def test_children_end_in_reverse_order_and_a_stubborn_one_is_killed(supervisor):
    first = supervisor.add(ChildSpec("first", SLEEP, yes))
    second = supervisor.add(ChildSpec("second", STUBBORN, yes, stop_s=0.3))
    await until(lambda: {"first | up", "second | up"} <= set(supervisor.said))
    await supervisor.stop()
    assert first.process.returncode == -signal.SIGTERM
    assert second.process.returncode == -signal.SIGKILL
    assert "second did not end within 0.3 s and is killed" in supervisor.said


async def test_long_lines_and_bad_bytes_are_relayed_without_waiting_for_their_end(supervisor):
    command = [sys.executable, "-S", "-c", "import sys,time; sys.stdout.buffer.write(b'\\xff'*200000); sys.stdout.flush(); time.sleep(60)"]  # noqa: E501  # fmt: skip
    supervisor.add(ChildSpec("loud", command, yes))
    await until(lambda: sum(len(line) for line in supervisor.said) > 65536)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux'")
@pytest.mark.parametrize("command", [["/bin/sleep", "600"], SILENT])
def test_a_child_dies_with_a_killed_parent(command, tmp_path):
    pidfile = tmp_path / "pid"
    parent = (
        "import asyncio, pathlib, sys\nfrom cli.supervisor import ChildSpec, Supervisor\n"
        "async def yes(): return True\n"
        "async def main():\n"
        "    s = Supervisor(print)\n"
        f"    child = s.add(ChildSpec('c', {command!r}, yes))\n"
        "    await child.ready.wait()\n"
        f"    pathlib.Path({str(pidfile)!r}).write_text(str(child.process.pid))\n"
        "    await s.wait()\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not (pidfile.exists() and pidfile.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child = psutil.Process(int(pidfile.read_text()))
    while child.cmdline() != command:  # it has not become the command yet
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    with contextlib.suppress(psutil.NoSuchProcess):
        while child.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_the_tether_does_not_start_without_its_parent():
    tether = Path(__file__).parents[3] / "cli" / "tether.py"
    result = subprocess.run(
        [sys.executable, str(tether), str(os.getpid() + 1), "/bin/echo", "started"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "started" not in result.stdout
