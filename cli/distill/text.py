"""An evaluation as text for a terminal. Called by `evaluate`."""

from __future__ import annotations

from cli.distill.judging import ALL, Report


def as_text(report: Report) -> str:
    """Tables of acceptance, costs, expected and timed gains, and the advice in words."""
    lines = [f"{report.method} ({report.draft}) for {report.target}, {report.dtype} on {report.machine}"]
    lines += [f"SHA-256 {report.draft_sha256}, licence {report.licence or 'not told'}"] if report.draft_sha256 else []
    lines += [
        f"{split}: " + ", ".join(f"{one.answers} answers ({one.tokens:,} tokens) at {t}" for t, one in found.items())
        for split, found in report.data.items()
    ]
    for temperature, tasks in report.acceptance[report.method].items():
        lines += ["", f"tokens per round (a) and share of rounds without any (z), temperature {temperature}"]
        ks = [row.k for row in tasks[ALL]]
        lines.append(f"{'task':16}" + "".join(f"{f'k={k}':>16}" for k in ks))
        for task, rows in tasks.items():
            cells = [f"{row.a:.2f}  z {row.z:.2f}" if row.a is not None and row.z is not None else "-" for row in rows]
            lines.append(f"{task:16}" + "".join(f"{cell:>16}" for cell in cells))
    if report.costs:
        lines += ["", "costs in plain steps of the same batch"]
        lines += [
            f"batch {cost.batch} {cost.method:12} k={cost.k}: α {cost.alpha:.3f}, β {cost.beta:.3f}"
            for cost in report.costs
            if cost.method in {report.method, "hybrid"}
        ]
        lines += ["", "advice for greedy requests"]
        for task, found in report.advice.items():
            words = [
                f"batch {one.batch}: " + (f"k = {one.k}, expected gain {one.expected_gain:.2f}" if one.k else "plain")
                for one in found
            ]
            lines.append(f"{task:16}" + "; ".join(words))
    for method, gains in report.measured.items():
        lines += ["", f"timed gain of {method} at k = {report.measured_k}, batch 1"]
        lines += [
            f"{task:16}{one.gain:.3f} [{one.low:.3f}, {one.high:.3f}] n={one.pairs}"
            + (f", a {one.a:.2f}" if one.a is not None else "")
            for task, one in gains.items()
        ]
    if report.loses_on:
        lines += ["", f"not worth it on: {', '.join(report.loses_on)}"]
    return "\n".join(lines)
