"""A scripted server for each test."""

from collections.abc import Iterator

import pytest
from scripted import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A server that answers from a script."""
    made = ScriptedServer()
    yield made
    made.close()
