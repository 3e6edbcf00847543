"""Which task a request is: structural signals, then a linear text model on a capped window (called by `serve`)."""

from gateway.classify.classifier import Classifier

__all__ = ("Classifier",)
