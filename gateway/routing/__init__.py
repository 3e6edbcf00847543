"""The decision: pure functions from statistics, a policy's rule and the load to an arm with a reason.

`observe` turns a finished request into counters, `build_snapshot` turns merged counters and costs into a `Snapshot`,
`decide` picks an arm from it, `summarize` shows it.
"""

from gateway.routing.decide import decide
from gateway.routing.observe import observe
from gateway.routing.snapshot import Bucket, Snapshot, build_snapshot, empty_snapshot
from gateway.routing.summarize import ArmSummary, TaskSummary, summarize
from gateway.routing.thresholds import Thresholds, thresholds_of
from gateway.routing.tuning import Tuning

__all__ = (
    "ArmSummary",
    "Bucket",
    "Snapshot",
    "TaskSummary",
    "Thresholds",
    "Tuning",
    "build_snapshot",
    "decide",
    "empty_snapshot",
    "observe",
    "summarize",
    "thresholds_of",
)
