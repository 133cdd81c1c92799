"""The process around the application: builds it from settings, runs it under uvicorn, and ends it well.

SIGTERM and SIGINT: refuse new work, finish what is in flight within the grace time, exit 0. SIGHUP: read the keys file
again. A default model that cannot be loaded ends the process with its error.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator

import uvicorn

from dicast.engine import Engine
from dicast.errors import ConfigError
from dicast.records import Choice, Noul, Record, Score
from dicast.server.app import App
from dicast.server.bodies import BodyBudget
from dicast.server.keys import KeyStore
from dicast.server.limits import CallerLimits
from dicast.server.logs import configure
from dicast.server.metrics import Metrics
from dicast.server.models import ModelRegistry
from dicast.server.protocol import http_protocol
from dicast.server.services import Services
from dicast.server.settings import ModelSpec, Settings

WARM_UP = Record(
    "Warm-up.",
    {
        "noul": Noul("Is this a test?"),
        "choice": Choice("What is it?", {"test": None, "other": None}),
        "score": Score("How long is it?", ["short", "long"]),
    },
)
"""A record that makes a model allocate what it needs before the first request."""
_BACKLOG = 1024


def build_app(
    settings: Settings,
    *,
    load: Callable[[ModelSpec], Engine] | None = None,
    on_broken: Callable[[Exception], None] | None = None,
) -> App:
    """The application of some settings.

    Args:
        settings: checked settings.
        load: loads one model; by default :func:`dicast.load` and a warm-up.
        on_broken: called when the default model cannot be loaded.

    Raises:
        ConfigError: the keys cannot be read.
    """
    models = ModelRegistry(
        settings.models,
        load or (lambda spec: load_engine(spec, settings)),
        memory=settings.model_memory,
        any_model=settings.any_model,
    )
    services = Services(
        settings=settings,
        models=models,
        keys=KeyStore(settings.api_key_env, settings.api_keys_file),
        callers=CallerLimits(settings.requests_per_minute, settings.concurrent_per_key),
        budget=BodyBudget(settings.max_buffered),
        metrics=Metrics(models),
    )
    return App(services, on_broken)


def load_engine(spec: ModelSpec, settings: Settings) -> Engine:
    """Load a model, start its engine and answer one record, so that the first request is as quick as the next."""
    from dicast.model import load

    engine = Engine(load(spec.path, device=settings.device, dtype=settings.dtype, confidence=settings.confidence))
    engine.decide(WARM_UP)
    return engine


def serve(settings: Settings, *, load: Callable[[ModelSpec], Engine] | None = None) -> int:
    """Run a server until it is told to stop.

    Args:
        settings: how.
        load: as in :func:`build_app`.

    Returns:
        The exit code: 0.

    Raises:
        ConfigError: a setting is wrong, the keys cannot be read, or the address cannot be used.
        DicastError: the default model cannot be loaded.
    """
    settings.check()
    log = configure(settings.log_level, settings.log_format)
    broken: list[Exception] = []

    def stop_broken(error: Exception) -> None:
        broken.append(error)
        server.should_exit = True

    app = build_app(settings, load=load, on_broken=stop_broken)
    listener = listen(settings)
    server = Server(app, settings)
    address = _url(settings.host, listener.getsockname()[1])
    log.info("listening", extra={"facts": {"address": address, "keys": len(app.services.keys.names)}})
    asyncio.run(server.serve([listener]))
    if broken:
        raise broken[0]
    log.info("stopped")
    return 0


class Server(uvicorn.Server):
    """uvicorn with signals of our own: its own way ends the process by the signal instead of with exit code 0."""

    def __init__(self, app: App, settings: Settings) -> None:
        super().__init__(_uvicorn_config(app, settings))
        self._app = app

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals while serving in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if sys.platform == "win32":  # no signal handlers in the loop; uvicorn's own way has to do
            with super().capture_signals():
                yield
            return
        loop = asyncio.get_running_loop()
        handled = [(signal.SIGTERM, self._stop), (signal.SIGINT, self._stop), (signal.SIGHUP, self._reload_keys)]
        for number, handler in handled:
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number, _ in handled:
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        """Drain; a second signal while draining ends at once."""
        if self._app.services.draining:
            self.force_exit = True
        self._app.services.draining = True
        self._app.services.log.info("draining", extra={"facts": {"in_flight": self._app.in_flight}})
        self.should_exit = True

    def _reload_keys(self) -> None:
        log, keys = self._app.services.log, self._app.services.keys
        try:
            keys.reload()
            log.info("keys reloaded", extra={"facts": {"keys": len(keys.names)}})
        except ConfigError as error:
            log.error("keys not reloaded; the old ones stay", extra={"facts": {"error": str(error)}})


def _uvicorn_config(app: App, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=http_protocol(),
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        server_header=False,
        date_header=True,
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.grace_seconds,
        backlog=_BACKLOG,
    )


def listen(settings: Settings) -> socket.socket:
    """A bound socket, so that a taken port is an error before anything is loaded.

    Raises:
        ConfigError: the address cannot be used.
    """
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        if sys.platform != "win32":  # there it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot listen on {settings.host}:{settings.port}: {reason}", field="--port") from None
    return listener


def _url(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
