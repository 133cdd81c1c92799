"""What HTTP costs: latency added to a direct call, requests per second by clients, memory after many requests, drift.

    python -m benchmarks.server [--parts latency throughput ...] [--requests 300] [--memory 20000]

The server is a process of its own on loopback with the embedded model; the direct calls are made in this process on an
engine with the same model and the same threads, in turns with the HTTP calls. Every state is new, so that no cache of
whole answers can help; the schema is the same, as in practice. The load comes from threads of this process, which
shares the cores with the server. Memory is the server's own count of its resident bytes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

QUESTIONS: dict[str, Any] = {
    "refund": {"type": "noul", "instructions": "Does the customer want money back?"},
    "team": {
        "type": "choice",
        "instructions": "Which team should handle this?",
        "criteria": {"billing": "Payments, invoices, refunds", "technical": "Bugs and outages", "sales": "Pricing"},
    },
    "anger": {
        "type": "score",
        "instructions": "How angry is the customer?",
        "criteria": ["Calm", "Frustrated", "Very angry"],
    },
}
STATES = (
    "I was charged twice for invoice {n}. Please refund one of the payments today.",
    "Since update {n} the app crashes when I open the settings. What can I do?",
    "Could you tell me what the plan for {n} users would cost per year?",
    "Ticket {n}: I have written three times now and nobody answers. This is unacceptable!",
)
HEADERS = {"content-type": "application/json"}


def body(number: int, **more: Any) -> bytes:
    """A request that was not sent before."""
    state = STATES[number % len(STATES)].format(n=number)
    return json.dumps({"state": state, "questions": QUESTIONS, **more}).encode()


EMBEDDED = (sys.executable, "-m", "dicast.cli.app", "serve", "--port", "0", "--log-format", "json")
ARITHMETIC = (sys.executable, str(Path(__file__).parents[1] / "tests" / "server" / "fake_server.py"), "arithmetic")
"""The same server with the tests' model of plain arithmetic: what is left is the cost of the server itself."""


@contextmanager
def server(command: Sequence[str]) -> Iterator[int]:
    """A server process; gives its port."""
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    drain = threading.Thread(target=lambda: [None for _ in child.stderr or ()], daemon=True)
    try:
        for line in child.stderr:
            event = json.loads(line)
            if event["event"] == "listening":
                port = int(event["address"].rsplit(":", 1)[1])
            if event["event"] == "model loaded":
                break
        drain.start()
        yield port
    finally:
        child.terminate()
        child.wait(60)


class Client:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(self, data: bytes) -> dict[str, Any]:
        """Ask, and ask again when the server is busy, as the official clients do."""
        while True:
            self._connection.request("POST", "/v1/systemone", data, HEADERS)
            response = self._connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
            if response.status == 200:
                return answer
            if response.status != 503:
                raise RuntimeError(f"{response.status}: {answer}")
            time.sleep(int(response.headers["retry-after-ms"]) / 1000)


def metric(port: int, name: str) -> float:
    """One of the server's own numbers, over a connection of its own: idle ones are closed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])


def milliseconds(function: Callable[[], Any]) -> float:
    """Time of one call."""
    began = time.perf_counter()
    function()
    return 1000 * (time.perf_counter() - began)


def latency(port: int, requests: int) -> dict[str, Any]:
    """Direct calls and HTTP calls in turns, each with the same states."""
    from dicast.engine import Engine
    from dicast.model import load
    from dicast.records import record_from

    client = Client(port)
    direct, over_http = [], []
    with Engine(load(device="cpu")) as engine:
        for number in range(-10, requests):
            data = body(number)
            fields = json.loads(data)
            record = record_from(fields["state"], fields["questions"])
            direct.append(milliseconds(lambda: engine.decide(record)))  # noqa: B023
            over_http.append(milliseconds(lambda: client.ask(data)))  # noqa: B023
    direct, over_http = direct[10:], over_http[10:]
    return {
        "requests": requests,
        "direct_p50_ms": round(statistics.median(direct), 3),
        "http_p50_ms": round(statistics.median(over_http), 3),
        "added_p50_ms": round(statistics.median(h - d for h, d in zip(over_http, direct, strict=True)), 3),
        "direct_p95_ms": round(statistics.quantiles(direct, n=20)[-1], 3),
        "http_p95_ms": round(statistics.quantiles(over_http, n=20)[-1], 3),
    }


def throughput(port: int, clients: int, requests: int, first: int) -> dict[str, Any]:
    """Requests per second of some clients that each wait for their answer."""
    numbers = iter(range(first, first + requests))
    lock = threading.Lock()
    times: list[float] = []

    def work() -> None:
        client = Client(port)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            taken = milliseconds(lambda: client.ask(body(number)))  # noqa: B023
            with lock:
                times.append(taken)

    cpu = metric(port, "process_cpu_seconds_total")
    began = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    return {
        "clients": clients,
        "requests": requests,
        "requests_per_second": round(requests / seconds, 1),
        "p50_ms": round(statistics.median(times), 2),
        "p95_ms": round(statistics.quantiles(times, n=20)[-1], 2),
        "server_cpu_ms_per_request": round(1000 * (metric(port, "process_cpu_seconds_total") - cpu) / requests, 2),
    }


def memory(port: int, requests: int, first: int) -> dict[str, Any]:
    """Resident bytes of the server after 100 and 1,000 requests, half of them, and all of them.

    One state in eight is new, the others repeat, so that caches fill and 20,000 requests take minutes.
    """
    lock = threading.Lock()
    numbers = iter(range(requests))
    after: dict[str, int] = {}

    def work() -> None:
        client = Client(port)
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            client.ask(body(first + number if number % 8 == 0 else number % 256))
            if number in (99, 999, requests // 2 - 1, requests - 1):
                with lock:
                    after[str(number + 1)] = int(metric(port, "process_resident_memory_bytes"))

    threads = [threading.Thread(target=work) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"resident_bytes_after": after}


def drift(port: int, states: int) -> dict[str, Any]:
    """How far answers move when each question is scored alone in place of together."""
    client = Client(port)
    moved: list[float] = []
    flips = 0
    for number in range(states):
        together = client.ask(body(number))["answers"]
        alone = client.ask(body(number, x_dicast={"isolate": True}))["answers"]
        for name, answer in together.items():
            one, other = shares(answer), shares(alone[name])
            moved.append(max(abs(one[key] - other[key]) for key in one))
            flips += max(one, key=one.__getitem__) != max(other, key=other.__getitem__)
    return {
        "states": states,
        "median_largest_difference": round(statistics.median(moved), 4),
        "p95_largest_difference": round(statistics.quantiles(moved, n=20)[-1], 4),
        "largest_difference": round(max(moved), 4),
        "share_of_flips": round(flips / len(moved), 4),
    }


def shares(answer: dict[str, Any]) -> dict[str, float]:
    """The distribution of any answer."""
    if answer["type"] == "noul":
        return {"true": answer["noul"], "false": 1 - answer["noul"]}
    probabilities: dict[str, float] = answer["probabilities"]
    return probabilities


Part: TypeAlias = Callable[[int, argparse.Namespace], Any]


def _throughputs(port: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    return [throughput(port, clients, arguments.requests, 10_000 * clients) for clients in (1, 8, 32)]


PARTS: dict[str, tuple[Sequence[str], Part]] = {
    "latency": (EMBEDDED, lambda port, arguments: latency(port, arguments.requests)),
    "throughput": (EMBEDDED, _throughputs),
    "drift": (EMBEDDED, lambda port, arguments: drift(port, min(arguments.requests, 100))),
    "memory": (EMBEDDED, lambda port, arguments: memory(port, arguments.memory, 1_000_000)),
    "throughput_without_model": (ARITHMETIC, _throughputs),
    "memory_without_model": (ARITHMETIC, lambda port, arguments: memory(port, arguments.memory, 1_000_000)),
}


def main() -> None:
    """Run some or all parts and write them into the result file; parts that were not run keep their old numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--memory", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "server.json")
    arguments = parser.parse_args()
    for part in arguments.parts:
        command, measure = PARTS[part]
        load = [round(value, 1) for value in os.getloadavg()]
        with server(command) as port:
            numbers = measure(port, arguments)
        print(json.dumps({part: numbers}), flush=True)
        result = json.loads(arguments.out.read_text(encoding="utf-8")) if arguments.out.exists() else {}
        result[part] = {
            "numbers": numbers,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "omp_num_threads": os.environ.get("OMP_NUM_THREADS", "default"),
            "load_average_before": load,
            "command": " ".join(["python -m benchmarks.server", *sys.argv[1:]]),
        }
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
