"""A process that has started anew is told from the first one that is met."""

from __future__ import annotations

from gateway.backends.base import Target
from gateway.backends.pool import ReplicaPool
from gateway.backends.vllm import VllmBackend
from gateway.types import Arm


def test_only_a_later_start_is_a_restart() -> None:
    backend = VllmBackend(Target("b", "http://127.0.0.1:9", "m", (Arm("b"),), secret=b"secret"))
    backend.epoch = "1"  # while the first probe has the models and waits for the metrics
    assert not backend.state().warming
    backend.epoch, backend.healthy = "kind.100", True
    assert not backend.state().warming
    backend.epoch, backend.healthy = "kind.200", False
    assert not backend.state().warming
    backend.healthy = True
    assert backend.state().warming


def test_a_pool_is_warming_while_any_replica_is() -> None:
    replicas = [VllmBackend(Target("b", f"http://127.0.0.1:{n}", "m", (Arm("b"),), secret=b"secret")) for n in (8, 9)]
    pool = ReplicaPool("b", replicas)
    for replica in replicas:
        replica.epoch, replica.healthy = "kind.100", True
    assert not pool.state().warming
    replicas[1].epoch = "kind.200"
    assert pool.state().warming
