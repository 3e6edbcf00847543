"""The shipped classifier, loaded once."""

import pytest

from gateway.classify import Classifier


@pytest.fixture(scope="session")
def classifier() -> Classifier:
    return Classifier.load()
