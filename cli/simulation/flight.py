"""One request under in-flight control, round by round, with the engine's own `Controller`."""

from __future__ import annotations

from cli.simulation.costs import CostModel
from cli.simulation.replay import Steps
from cli.simulation.traces import Trace
from engine.control import Controller
from engine.messages import Speculation


def fly(trace: Trace, costs: CostModel, speculation: Speculation) -> Steps:
    """Return the steps of a request whose draft length the controller sets before each of them."""
    lengths = [k for k, _ in speculation.adaptive.break_even] if speculation.adaptive else [speculation.k]
    lines = [costs.round_line(d) for d in range(speculation.k + 1)]
    plain_base, plain_kv = lines[0]

    def break_even(load: int, context: int) -> list[tuple[int, float]]:
        del load
        plain = plain_base + plain_kv * context
        return [(k, (lines[k][0] + lines[k][1] * context) / plain) for k in lengths]

    controller = Controller(speculation.k, speculation.adaptive, break_even=break_even)
    next_k, observe = controller.next_k, controller.observe
    accepts, limits, size, prompt = trace.emitted, trace.drafted, len(trace.emitted), trace.prompt_tokens
    emitted: list[int] = []
    drafted: list[int] = []
    seconds, at = 0.0, 0
    while at < size:
        k = next_k(costs.batch, prompt + at)
        d = k if limits is None else min(k, limits[at])
        e = min(accepts[at], d + 1, size - at)
        base, per_kv = lines[d]
        seconds += base + per_kv * (prompt + at)
        observe(d, e - 1)
        emitted.append(e)
        drafted.append(d)
        at += e
    return Steps(emitted, drafted, seconds)
