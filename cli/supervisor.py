"""Keeps child processes running: starts them, says what they do, starts them again, ends them. Called by `serve.py`.

Children are tethered (`tether.py`): however this process ends, they end with it. Each is a process group of its own, so
that Ctrl-C reaches this process alone, which then ends them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TETHER = Path(__file__).with_name("tether.py")
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_STEADY_S = 60.0
"""A child that ran for so long is started again without a long pause."""
_KEPT_LINES = 15


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """How one child is run."""

    name: str
    command: list[str]
    answers: Callable[[], Awaitable[bool]]
    """Whether it can do its work now; asked until it says yes."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to our own environment."""
    needed: bool = True
    """Whether everything ends when it ends before it could ever do its work."""
    stop_s: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""
    prepare: Callable[[], None] = lambda: None
    """Called before each start."""
    quiet: bool = False
    """Its output is kept for the case that it fails, and not shown."""


class Child:
    """One child, over all its restarts."""

    def __init__(self, spec: ChildSpec, say: Callable[[str], None]) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        """Set once it can do its work; cleared when it ends."""
        self.process: asyncio.subprocess.Process | None = None
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._say = say
        self._output: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process. Raises OSError where its program is missing."""
        self.spec.prepare()
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), *self.spec.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.spec.env},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            process_group=0,
        )  # fmt: skip
        self._output = asyncio.create_task(self._relay(self.process.stdout))

    async def wait_ready(self) -> None:
        """Return when it can do its work or has ended."""
        while self.process is not None and self.process.returncode is None:
            if await self.spec.answers():
                self.ready.set()
                return
            await asyncio.sleep(0.1)

    async def wait_ended(self) -> str:
        """Wait for its end and return how it ended, in words."""
        if self.process is None:
            return "not started"
        code = await self.process.wait()
        self.ready.clear()
        if self._output is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._output, 1.0)
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit status {code}"

    async def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL when it takes too long."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self.spec.stop_s)
        except TimeoutError:
            self._say(f"{self.spec.name} did not end within {self.spec.stop_s:g} s and is killed")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _relay(self, stream: asyncio.StreamReader | None) -> None:
        """Show its output line by line under its name; a line without end is cut, not waited for."""
        rest = b""
        while stream is not None and (data := await stream.read(65536)):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > 65536:
                lines, rest = [*lines, rest], b""
            for line in lines:
                text = line.decode("utf-8", "replace").rstrip("\r")
                self.lines.append(text)
                if not self.spec.quiet:
                    self._say(f"{self.spec.name} | {text}")


class Supervisor:
    """Runs children until one that is needed cannot work, or until it is told to stop."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.children: list[Child] = []
        self.failure = ""
        """Why it ended by itself; empty when it was told to."""
        self._say = say
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def add(self, spec: ChildSpec) -> Child:
        """Start a child and keep it running."""
        child = Child(spec, self._say)
        self.children.append(child)
        self._tasks.append(asyncio.create_task(self._keep(child), name=spec.name))
        return child

    async def wait(self) -> None:
        """Return when told to stop or when a needed child cannot work."""
        await self._ended.wait()

    def end(self, failure: str = "") -> None:
        """Let `wait` return."""
        self.failure = self.failure or failure
        self._ended.set()

    @property
    def ended(self) -> bool:
        """Whether `wait` returns."""
        return self._ended.is_set()

    async def stop(self) -> None:
        """End all children, the last started first."""
        self._stopping = True
        for child in reversed(self.children):
            await child.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self, child: Child) -> None:
        spec, pause, was_ready = child.spec, _FIRST_PAUSE_S, False
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await child.start()
                await child.wait_ready()
                if child.ready.is_set() and was_ready:
                    self._say(f"{spec.name} is ready again")
                was_ready = was_ready or child.ready.is_set()
                how = await child.wait_ended()
            except OSError as error:
                how = str(error)
            if self._stopping:
                return
            if not was_ready and spec.needed:
                last = f": {child.lines[-1].removeprefix('Error: ')}" if child.lines else ""
                self.end(f"{spec.name} could not start ({how}){last}")
                return
            pause = _FIRST_PAUSE_S if clock() - began > _STEADY_S else pause
            last = f": {child.lines[-1]}" if spec.quiet and child.lines and not was_ready else ""
            self._say(f"{spec.name} ended ({how}{last}); starting it again in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 2)
