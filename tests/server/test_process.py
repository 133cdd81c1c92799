"""The process: overload, deadlines, clients that go away, draining, signals, logs."""

import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.serving import BODY, NOUL, Running, running
from tests.server.test_keys import keys_file

from dicast.engine import Engine
from dicast.errors import CheckpointError
from dicast.server.logs import configure
from dicast.server.settings import Settings

SCRIPT = Path(__file__).with_name("fake_server.py")


class TestOverload:
    def test_a_full_queue_is_a_503_with_a_hint_and_nobody_else_suffers(self) -> None:
        with running(queue=1) as alive, ThreadPoolExecutor(8) as pool:
            alive.post(BODY)
            alive.model.gate.clear()
            futures = [pool.submit(alive.post, {**BODY, "state": f"s{i}"}) for i in range(8)]
            alive.until(lambda: sum(future.done() for future in futures) == 6)
            alive.model.gate.set()
            responses = [future.result() for future in futures]
            assert sorted(response.status_code for response in responses) == [200, 200] + [503] * 6
            refused = next(response for response in responses if response.status_code == 503)
            assert refused.json()["error"]["code"] == "overloaded"
            assert int(refused.headers["retry-after-ms"]) > 0
            assert int(refused.headers["retry-after"]) > 0
            metrics = alive.client.get("/metrics").text
            assert 'dicast_refused_requests_total{reason="overloaded"} 6.0' in metrics

    def test_too_many_requests_at_once_are_refused_before_their_body_is_read(self) -> None:
        with running(Settings(max_in_flight=1)) as alive, ThreadPoolExecutor(1) as pool:
            alive.post(BODY)
            alive.model.gate.clear()
            first = pool.submit(alive.post, BODY)
            alive.until(lambda: alive.app.in_flight == 1)
            assert alive.post(BODY).status_code == 503
            assert alive.client.get("/health").status_code == 200
            alive.model.gate.set()
            assert first.result().status_code == 200

    def test_concurrency_per_key(self) -> None:
        with running(Settings(concurrent_per_key=1)) as alive, ThreadPoolExecutor(1) as pool:
            alive.post(BODY)
            alive.model.gate.clear()
            first = pool.submit(alive.post, BODY)
            alive.until(lambda: alive.app.in_flight == 1)
            refused = alive.post(BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
            alive.model.gate.set()
            assert first.result().status_code == 200

    def test_a_deadline_passes_and_the_record_leaves_the_queue(self) -> None:
        with running() as alive:
            alive.post(BODY)
            alive.model.gate.clear()
            late = alive.post({**BODY, "x_dicast": {"deadline_ms": 30}})
            assert (late.status_code, late.json()["error"]["code"]) == (503, "deadline_exceeded")
            assert "retry-after-ms" in late.headers
            alive.model.gate.set()
            assert alive.post(BODY).status_code == 200

    def test_work_for_a_client_that_has_gone_is_cancelled(self) -> None:
        with running() as alive:
            engine = idle_engine(alive)
            alive.model.gate.clear()
            with raw_request(alive, {**BODY, "state": "holds the worker"}):
                alive.until(lambda: engine.stats().running_records == 1)
                with raw_request(alive, {**BODY, "state": "nobody waits for this"}):
                    alive.until(lambda: engine.stats().queued_records == 1)
                alive.until(lambda: engine.stats().cancelled == 1)
                alive.model.gate.set()
            assert alive.post(BODY).status_code == 200
            assert not any("nobody waits" in text for text in alive.model.scored)
            assert 'status="499"' in alive.client.get("/metrics").text

    def test_a_batch_whose_client_has_gone_stops(self) -> None:
        with running() as alive:
            engine = idle_engine(alive)
            alive.model.gate.clear()
            lines = [json.dumps({"questions": {"q": NOUL}}), *(json.dumps({"state": f"b{i}"}) for i in range(500))]
            with raw_request(alive, "\n".join(lines), "/v1/systemone/batch", "application/x-ndjson"):
                alive.until(lambda: engine.stats().running_records > 0)
            alive.until(lambda: alive.app.in_flight == 0)
            alive.model.gate.set()
            assert alive.post(BODY).status_code == 200
            assert len(alive.model.scored) < 200

    def test_while_draining_new_work_is_refused_and_probes_say_so(self) -> None:
        with running() as alive:
            alive.post(BODY)
            assert alive.client.get("/ready").status_code == 200
            alive.app.services.draining = True
            refused = alive.post(BODY)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert refused.headers["connection"] == "close"
            assert alive.client.get("/ready").status_code == 503
            assert alive.client.get("/health").status_code == 200

    def test_a_server_is_not_ready_before_its_model_is_loaded(self) -> None:
        begin = threading.Event()

        def load(spec: Any) -> Any:
            assert begin.wait(20)
            raise CheckpointError("never mind")

        with running(load=load) as alive:
            assert alive.client.get("/ready").status_code == 503
            assert alive.client.get("/health").status_code == 200
            begin.set()


def idle_engine(alive: Running) -> Engine:
    """The engine of a loaded model, at rest: its worker forgets a record a moment after the answer was sent."""
    alive.post(BODY)
    engine = alive.app.services.models.loaded[0].engine
    alive.until(lambda: engine.stats().running_records == 0)
    return engine


def raw_request(
    alive: Running, body: Any, path: str = "/v1/systemone", content_type: str = "application/json"
) -> socket.socket:
    """Send a request and leave the answer unread."""
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    host, port = alive.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@dataclass
class Process:
    """A server process.

    Attributes:
        process: the process.
        url: its address.
        log: lines it has logged, read in the background.
    """

    process: "subprocess.Popen[str]"
    url: str
    log: list[dict[str, Any]]

    def until_logged(self, event: str) -> dict[str, Any]:
        """The first log line of an event; waits for it."""
        for _ in range(2000):
            for line in self.log:
                if line["event"] == event:
                    return line
            threading.Event().wait(0.005)
        raise AssertionError(f"{event} was not logged: {self.log}")


@contextmanager
def process(*arguments: str) -> Iterator[Process]:
    child = subprocess.Popen([sys.executable, str(SCRIPT), *arguments], stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    log: list[dict[str, Any]] = []

    def read() -> None:
        for line in child.stderr or ():
            log.append(json.loads(line) if line.startswith("{") else {"event": "text", "text": line})

    reader = threading.Thread(target=read)
    try:
        address = json.loads(child.stderr.readline())["address"]
        reader.start()
        yield Process(child, address, log)
    finally:
        child.kill()
        child.wait()
        reader.join()
        child.stderr.close()


class TestConnections:
    def exchange(self, alive: Running, *pieces: bytes) -> bytes:
        """Send pieces until the server has had enough, and read what it says."""
        host, port = alive.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece)
                return connection.recv(65536)
            except ConnectionError:
                return b"closed"

    def test_headers_that_never_end_are_refused(self) -> None:
        with running() as alive:
            start = b"GET /health HTTP/1.1\r\nHost: x\r\n"
            for endless in (b"X-Long: " + b"x" * 60_000, b"X: " + b"y" * 1000 + b"\r\n"):
                pieces = (endless if number == 0 or endless.endswith(b"\n") else b"x" * 60_000 for number in range(300))
                answer = self.exchange(alive, start, *pieces)
                assert answer == b"closed" or answer.startswith(b"HTTP/1.1 400")
            assert alive.client.get("/health").status_code == 200

    def test_long_headers_that_end_and_several_requests_on_one_connection_are_fine(self) -> None:
        with running() as alive:
            one = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 30_000 + b"\r\n\r\n"
            assert self.exchange(alive, one).startswith(b"HTTP/1.1 200")
            for _ in range(5):
                assert alive.client.get("/health", headers={"x-long": "x" * 30_000}).status_code == 200

    def test_what_is_not_http_is_refused(self) -> None:
        with running() as alive:
            for junk in (b"\x16\x03\x01\x02\x00" * 20, b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
                answer = self.exchange(alive, junk)
                assert answer == b"" or b" 400 " in answer or answer == b"closed"


class TestSignals:
    def test_sigterm_finishes_what_is_in_flight_and_exits_0(self) -> None:
        with process("fake") as server, ThreadPoolExecutor(1) as pool:
            server.until_logged("model loaded")
            with httpx.Client(base_url=server.url, timeout=20) as client:
                slow = pool.submit(client.post, "/v1/systemone", json={**BODY, "state": "slow"})
                while httpx.get(f"{server.url}/metrics").text.count("dicast_in_flight_requests 2.0") == 0:
                    assert not slow.done()
                server.process.send_signal(signal.SIGTERM)
                server.until_logged("draining")
                assert slow.result().status_code == 200
            assert server.process.wait(20) == 0
            assert server.until_logged("stopped")

    def test_sighup_reads_the_keys_again(self, tmp_path: Path) -> None:
        path, old = keys_file(tmp_path, "old")
        with process("fake", str(path)) as server, httpx.Client(base_url=server.url, timeout=20) as client:
            _, new = keys_file(tmp_path, "new")
            server.process.send_signal(signal.SIGHUP)
            server.until_logged("keys reloaded")
            statuses = [
                client.post("/v1/systemone", json=BODY, headers={"authorization": f"Bearer {key}"}).status_code
                for key in (old["old"], new["new"])
            ]
            assert statuses == [401, 200]
            line = server.until_logged("request")
            assert new["new"] not in json.dumps(server.log)
            assert line["status"] == 401

    def test_a_model_that_cannot_be_loaded_ends_the_process_with_its_error(self) -> None:
        with process("broken") as server:
            assert server.process.wait(20) == 1
            server.until_logged("model not loaded")
            assert "config.json is missing" in server.until_logged("text")["text"]


class TestLogs:
    def log_of(self, settings: Settings, headers: dict[str, str] | None = None) -> list[dict[str, Any]]:
        stream = StringIO()
        logger = configure("info", "json", stream)
        try:
            with running(settings) as alive:
                alive.post({**BODY, "state": "private matter"}, headers=headers or {})
                alive.post({"state": "private matter"})
                alive.client.get("/health")
        finally:
            logger.handlers = []
            logger.propagate = True
            logging.getLogger("uvicorn").handlers = []
            logging.getLogger("uvicorn").propagate = True
        return [json.loads(line) for line in stream.getvalue().splitlines()]

    def test_one_json_line_per_request_without_states_or_keys(self) -> None:
        lines = self.log_of(Settings(), {"authorization": "Bearer very-secret-key", "x-request-id": "trace-7"})
        requests = [line for line in lines if line["event"] == "request"]
        assert [line["status"] for line in requests] == [200, 422]
        first = requests[0]
        assert (first["request_id"], first["model"], first["questions"]) == ("trace-7", "arithmetic-1", 3)
        assert first["input_tokens"] > 0
        assert first["ms"] > 0
        assert "private" not in json.dumps(lines)
        assert "secret" not in json.dumps(lines)

    def test_bodies_are_logged_only_when_asked_for(self) -> None:
        lines = self.log_of(Settings(log_bodies=True))
        assert "private matter" in json.dumps(lines)

    @pytest.mark.parametrize("style", ["text", "json"])
    def test_tracebacks_are_part_of_the_line(self, style: str) -> None:
        stream = StringIO()
        logger = configure("info", style, stream)
        try:
            try:
                raise ZeroDivisionError("x")
            except ZeroDivisionError:
                logger.exception("failed", extra={"facts": {"a": 1}})
        finally:
            logger.handlers = []
            logger.propagate = True
            logging.getLogger("uvicorn").handlers = []
        assert "ZeroDivisionError" in stream.getvalue()
        assert "failed" in stream.getvalue()
