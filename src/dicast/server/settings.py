"""Every setting of a server in one frozen dataclass whose fields are the documentation. Opens no file and no socket."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from dicast.answers import CONFIDENCE_RULES, ConfidenceRule
from dicast.errors import ConfigError
from dicast.wire.rounding import MAX_DIGITS

MIB = 2**20


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model that a server offers.

    Attributes:
        name: the name in requests and answers; empty means the model's own name.
        path: checkpoint folder or hub name; None means the embedded model.
    """

    name: str = ""
    path: str | None = None

    @classmethod
    def parse(cls, text: str) -> ModelSpec:
        """Read ``NAME=PATH`` or ``PATH``.

        Raises:
            ConfigError: an empty name or path.
        """
        name, separator, path = text.partition("=")
        if not separator:
            name, path = "", text
        if not path or (separator and not name):
            raise ConfigError(f"must be NAME=PATH or PATH, not {text!r}", field="--model", seen=text)
        return cls(name, path)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server behaves.

    Attributes:
        host: address to listen on; a public one needs keys or ``insecure``.
        port: port to listen on; 0 lets the system choose.
        insecure: allow a public address without keys.
        models: models on offer; the first is the default and is loaded at the start, the others when first asked for.
        device: where models run: auto, cpu, cuda, cuda:N or mps.
        dtype: dtype of the weights, or auto.
        model_memory: most bytes of weights kept loaded; the least recently used idle model goes first. 0: no bound.
        any_model: answer any model name with the default model in place of refusing unknown ones.
        isolate: score each question alone unless a request says otherwise.
        digits: decimals of shown numbers.
        confidence: rule that defines ``confidence``.
        strict: refuse unknown top-level fields of System One requests.
        api_key_env: environment variables that hold one key each; the variable's name is the key's name.
        api_keys_file: TOML file of hashed keys, read again on SIGHUP.
        missing_key_status: 401 as documented, or 403 as TypeSafe's hosted API answers a request without a key.
        public_metrics: serve ``/metrics`` without a key even when keys are set.
        cors_origins: origins that browsers may call from; none by default, ``*`` for all.
        media_hosts: hosts from which images may be fetched by URL; none by default.
        media_processes: processes that decode images and videos.
        max_body: largest body in bytes, compressed or not.
        max_buffered: most bytes of bodies held at once over all requests.
        max_in_flight: most requests served at once.
        max_batch_lines: most states in one batch request.
        batch_window: states of one batch request that are in the engine at once.
        requests_per_minute: rate per key (per address without keys); 0: no bound. A key in the file may have its own.
        concurrent_per_key: requests at once per key (per address without keys); 0: no bound.
        deadline_ms: longest time for one request, queue included.
        read_seconds: longest time for a body to arrive.
        grace_seconds: longest time for requests in flight to finish after SIGTERM.
        keep_alive_seconds: idle time after which a connection is closed; longer than clients keep theirs.
        log_level: level of the log: debug, info, warning or error.
        log_format: json, text, or auto, which is text on a terminal.
        log_bodies: log request bodies too; they hold the states of your users.
        playground: serve the playground page at ``/``.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    insecure: bool = False
    models: tuple[ModelSpec, ...] = (ModelSpec(),)
    device: str = "auto"
    dtype: str = "auto"
    model_memory: int = 0
    any_model: bool = False
    isolate: bool = False
    digits: int = 4
    confidence: ConfidenceRule = "typesafe"
    strict: bool = False
    api_key_env: tuple[str, ...] = ()
    api_keys_file: Path | None = None
    missing_key_status: int = 401
    public_metrics: bool = False
    cors_origins: tuple[str, ...] = ()
    media_hosts: tuple[str, ...] = ()
    media_processes: int = 1
    max_body: int = 32 * MIB
    max_buffered: int = 256 * MIB
    max_in_flight: int = 256
    max_batch_lines: int = 100_000
    batch_window: int = 64
    requests_per_minute: int = 0
    concurrent_per_key: int = 0
    deadline_ms: int = 30_000
    read_seconds: float = 30.0
    grace_seconds: int = 30
    keep_alive_seconds: int = 75
    log_level: str = "info"
    log_format: str = "auto"
    log_bodies: bool = False
    playground: bool = True

    @property
    def has_keys(self) -> bool:
        """Whether requests need a key."""
        return bool(self.api_key_env) or self.api_keys_file is not None

    def check(self) -> Settings:
        """Check what can be checked without doing anything, and return the settings.

        Raises:
            ConfigError: names the option.
        """
        if not is_loopback(self.host) and not self.has_keys and not self.insecure:
            raise ConfigError(
                f"{self.host} can be reached from other machines and no API key is set; set --api-keys-file or "
                "--api-key-env, listen on 127.0.0.1, or say --insecure",
                field="--host",
                seen=self.host,
            )
        if not self.models:
            raise ConfigError("at least one model is required", field="--model")
        names = [spec.name for spec in self.models]
        if len(set(names)) < len(names):
            raise ConfigError("several models need different names: --model NAME=PATH", field="--model")
        self._check_choices()
        self._check_numbers()
        return self

    def _check_choices(self) -> None:
        choices = (
            ("--confidence", self.confidence, tuple(CONFIDENCE_RULES)),
            ("--missing-key-status", self.missing_key_status, (401, 403)),
            ("--log-level", self.log_level, ("debug", "info", "warning", "error")),
            ("--log-format", self.log_format, ("auto", "json", "text")),
        )
        for option, value, allowed in choices:
            if value not in allowed:
                shown = ", ".join(map(str, allowed))
                raise ConfigError(f"must be one of {shown}, not {value!r}", field=option, seen=value)

    def _check_numbers(self) -> None:
        bounds = (
            ("--port", self.port, 0, 65_535),
            ("--digits", self.digits, 2, MAX_DIGITS),
            ("--max-body", self.max_body, 1024, 1024 * MIB),
            ("--max-in-flight", self.max_in_flight, 1, 100_000),
            ("--deadline-ms", self.deadline_ms, 1, 3_600_000),
            ("--rate-limit", self.requests_per_minute, 0, 10_000_000),
            ("--concurrent-per-key", self.concurrent_per_key, 0, 100_000),
            ("--grace", self.grace_seconds, 0, 3600),
            ("--model-memory", self.model_memory, 0, 2**50),
        )
        for option, value, low, high in bounds:
            if not low <= value <= high:
                raise ConfigError(f"must be from {low} to {high}, not {value}", field=option, limit=high, seen=value)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
