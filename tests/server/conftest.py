"""One server with the embedded model for all tests with real clients."""

from collections.abc import Iterator

import pytest
from tests.server.serving import Running, running

from dicast.server.process import load_engine
from dicast.server.settings import Settings


@pytest.fixture(scope="session")
def embedded() -> Iterator[Running]:
    """A server with the embedded model."""
    settings = Settings(device="cpu")
    with running(settings, models={}, load=lambda spec: load_engine(spec, settings)) as alive:
        alive.until(lambda: alive.app.services.ready)
        yield alive
