"""A server on loopback with models of plain arithmetic, for tests that speak HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import httpx
import numpy as np

from dicast.engine import Engine
from dicast.errors import CapabilityError, TokenBudgetError
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions, Logits, ModelInfo, QuestionEncoding
from dicast.records import Record
from dicast.server.app import App
from dicast.server.process import Server, build_app, listen
from dicast.server.settings import ModelSpec, Settings

INFO = ModelInfo(
    "arithmetic-1", "arithmetic", "onnx", {"all": 1000}, "float32", "cpu", 2000, images=True, released="2026-11-30"
)
NOUL = {"type": "noul", "instructions": "Refund wanted?"}
CHOICE = {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "Payments", "technical": None}}
SCORE = {"type": "score", "instructions": "How angry?", "criteria": ["Calm", "Frustrated", "Very angry"]}
BODY: dict[str, Any] = {
    "model": "jev-latest",
    "state": "I was charged twice.",
    "questions": {"refund": NOUL, "team": CHOICE, "anger": SCORE},
}


@dataclass(frozen=True)
class Encoded:
    questions: tuple[QuestionEncoding, ...]
    texts: tuple[str, ...]
    length: int
    media_tokens: int = 0
    state_tokens_dropped: int = 0


class Arithmetic:
    """Logits from checksums of state, instructions and options; ids and other questions have no part in them.

    Scoring waits while ``gate`` is closed. A state with "boom" makes scoring fail.
    """

    def __init__(self, info: ModelInfo = INFO) -> None:
        self.info = info
        self.gate = threading.Event()
        self.gate.set()
        self.scored: deque[str] = deque(maxlen=1000)

    def encode(self, record: Record, options: EncodeOptions = DEFAULT_OPTIONS) -> Encoded:
        if record.images and not self.info.images:
            raise CapabilityError("cannot see", field="images")
        seen = "".join(str(image.size) for image in record.images)
        state = str(record.state)
        dropped = 0
        questions = [(key, q, str(q.instructions)) for key, q in record.questions.items()]
        fixed = sum(len(text) for _, _, text in questions)
        limit = self.info.max_tokens
        if len(state) + fixed > limit:
            if fixed > limit or options.truncation == "refuse":
                raise TokenBudgetError(
                    f"{len(state) + fixed} tokens are more than {limit}",
                    field="state",
                    limit=limit,
                    seen=len(state) + fixed,
                )
            dropped = len(state) + fixed - limit
            state = state[: limit - fixed]
        return Encoded(
            tuple(QuestionEncoding(key, q.type, q.options) for key, q, _ in questions),
            tuple(f"{state}|{seen}|{text}|{q.criteria}" for _, q, text in questions),
            len(state) + fixed,
            10 * len(record.images),
            dropped,
        )

    def score(self, encodings: Sequence[Encoded]) -> list[Logits]:
        assert self.gate.wait(20)
        self.scored.extend(encoding.texts[0] for encoding in encodings)
        if any("boom" in text for encoding in encodings for text in encoding.texts):
            raise RuntimeError("out of memory")
        return [
            [_logits(text, question.options) for text, question in zip(encoding.texts, encoding.questions, strict=True)]
            for encoding in encodings
        ]


def _logits(text: str, options: Sequence[str]) -> np.ndarray:
    sums = [crc32(f"{text}|{option}".encode("utf-8", "surrogatepass")) for option in options]
    return np.array([(value % 4001) / 1000 - 2 for value in sums], np.float32)


@dataclass
class Running:
    """A server that listens.

    Attributes:
        url: its address.
        app: its application.
        models: its models by name.
        client: talks to it.
    """

    url: str
    app: App
    models: Mapping[str, Arithmetic]
    client: httpx.Client

    @property
    def model(self) -> Arithmetic:
        return next(iter(self.models.values()))

    def post(self, body: Any, path: str = "/v1/systemone", **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that another thread does has happened."""
        for _ in range(2000):
            if condition():
                return
            time.sleep(0.005)
        raise AssertionError("it did not happen within 10 seconds")


@contextmanager
def running(
    settings: Settings | None = None,
    *,
    models: Mapping[str, Arithmetic] | None = None,
    queue: int = 1024,
    load: Callable[[ModelSpec], Engine] | None = None,
) -> Iterator[Running]:
    """Run a server in a thread; ends it afterwards."""
    offered = {"arithmetic-1": Arithmetic()} if models is None else models
    specs = tuple(ModelSpec(name, name) for name in offered) or (ModelSpec(),)
    settings = replace(settings or Settings(), port=0, models=specs, grace_seconds=2)

    def engine_of(spec: ModelSpec) -> Engine:
        return Engine(offered[spec.name], queue_records=queue)

    app = build_app(settings.check(), load=load or engine_of)
    listener = listen(settings)
    server = Server(app, settings)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=20) as client:
            alive = Running(url, app, offered, client)
            alive.until(lambda: server.started)
            yield alive
    finally:
        for model in offered.values():
            model.gate.set()
        app.services.draining = True
        server.should_exit = True
        thread.join(20)
        listener.close()
