"""What waits for an audit is bounded in number and in bytes."""

from __future__ import annotations

from gateway.lossless.auditor import MOST_BYTES, QUEUE, Auditor
from gateway.lossless.served import Served
from gateway.policy import Rule
from gateway.tap import Tap
from gateway.types import Arm, GenerateRequest, Identity


class Nowhere:
    """Keeps nothing."""

    async def insert_audits(self, results: object) -> None:
        del results


def served(size: int) -> Served:
    request = GenerateRequest(
        request_id="r", endpoint="chat", body={}, model="m", stream=False, include_usage=False,
        identity=Identity("k", "k", "app", False), arrived=0.0, arrived_at=0.0, temperature=0.0, max_tokens=None,
        raw=bytes(size),
    )  # fmt: skip
    return Served(request, {}, "p", Rule("r"), "chat", Arm("b"), Tap(), "stop", 1)


def test_few_requests_wait_and_few_bytes() -> None:
    auditor = Auditor(Nowhere())
    for _ in range(QUEUE + 2):
        auditor.submit(served(10))
    assert (auditor.state().queued, auditor.state().skipped) == (QUEUE, 2)
    auditor = Auditor(Nowhere())
    for size in (MOST_BYTES - 5, 10, 5):
        auditor.submit(served(size))
    assert (auditor.state().queued, auditor.state().skipped) == (2, 1)
