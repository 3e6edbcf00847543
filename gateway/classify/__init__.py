"""Which task a request is: structural signals, then a linear text model on a capped window (called by `serve`)."""

from gateway.classify.classifier import Classifier
from gateway.classify.memory import Memory

__all__ = ("Classifier", "Memory")
