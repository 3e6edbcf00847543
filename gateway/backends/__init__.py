"""Backends: one adapter per kind of engine over shared HTTP client code; used by `serve`."""

from gateway.backends.base import Backend, Timeouts, Upstream
from gateway.backends.engine import EngineBackend
from gateway.backends.generic import GenericBackend
from gateway.backends.pool import ReplicaPool
from gateway.backends.vllm import VllmBackend

__all__ = ["Backend", "EngineBackend", "GenericBackend", "ReplicaPool", "Timeouts", "Upstream", "VllmBackend"]
