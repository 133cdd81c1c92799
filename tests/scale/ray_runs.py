"""What the tests of Ray do with it. Run as ``python ray_runs.py FUNCTION RESULT``, see `conftest.py`."""

from __future__ import annotations

import json
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.golden_cases import CASES, RELEASE
from tests.scale.conftest import KEY, KEY_VARIABLE

CASES_USED = [case for case in CASES if "media" not in case and case["request"]["state"]][:6]
BAD_REQUEST = {"state": "no questions"}
REPLICAS = 2
STARTS = 4
WARNING_MODULES = (r"ray\.data\.context", r"ray\.serve\..*")
"""Modules of Ray that use what Ray or pydantic have deprecated."""


def offline() -> dict[str, Any]:
    """Decide cases and a bad request with one actor, in more than one batch."""
    import ray.data

    from dicast.errors import ConfigError, RecordError
    from dicast.records import Choice
    from dicast.scale.data import decide_dataset, request_dataset

    dataset = request_dataset([*({**case["request"], "model": "release"} for case in CASES_USED), BAD_REQUEST])
    refused = []
    for wrong in ({"column": "text"}, {"questions": {"ok": Choice("?", [str(n) for n in range(256)])}}):
        try:
            decide_dataset(dataset, RELEASE, **wrong)
        except (ConfigError, RecordError) as error:
            refused.append(error.field)
    ray.data.DataContext.get_current().enable_progress_bars = False
    rows = decide_dataset(dataset, RELEASE, batch_size=3, device="cpu").take_all()
    return {"rows": rows, "refused": refused}


def online() -> dict[str, Any]:
    """Ask replicas behind Ray Serve; per request the status and the text of the answer."""
    import httpx
    from ray import serve

    from dicast.scale.serve import NAME, build_app
    from dicast.server.settings import ModelSpec, Settings

    settings = Settings(models=(ModelSpec("tiny", str(RELEASE)),), device="cpu", api_key_env=(KEY_VARIABLE,))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(build_app(settings, replicas=REPLICAS, num_cpus=0.25), name="dicast", route_prefix="/")
    states = serve.status().applications["dicast"].deployments[NAME].replica_states

    request = CASES_USED[0]["request"]
    lines = [{"questions": request["questions"]}, *[{"state": request["state"]}] * 3]
    asked = {
        "good": [{"json": request}] * 4 * REPLICAS,
        "bad": [{"json": BAD_REQUEST}],
        "without a key": [{"json": request, "headers": {"authorization": ""}}],
    }
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {KEY}"}, timeout=60
    ) as client:
        answers = {name: [client.post("/v1/systemone", **sent) for sent in several] for name, several in asked.items()}
        answers["batch"] = [
            client.post(
                "/v1/systemone/batch",
                content="\n".join(map(json.dumps, lines)),
                headers={"content-type": "application/x-ndjson"},
            )
        ]
        answers["ready"] = [client.get("/ready")]
    serve.shutdown()
    shown = {name: [(answer.status_code, answer.text) for answer in several] for name, several in answers.items()}
    return {"states": {str(state): count for state, count in states.items()}, "answers": shown}


def start_ray() -> None:
    """Start Ray; again if need be, since its raylet aborts if its own helpers do not start within 15 seconds."""
    import ray

    for left in reversed(range(STARTS)):
        try:
            ray.init(
                address="local",
                num_cpus=1,
                include_dashboard=False,
                log_to_driver=False,
                object_store_memory=100 * 2**20,
            )
            return
        except Exception:
            ray.shutdown()
            if not left:
                raise


def main() -> None:
    """Start Ray, run one function, write what it returns."""
    warnings.simplefilter("error")
    for module in WARNING_MODULES:
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=module)
    import ray

    start_ray()
    result = {"offline": offline, "online": online}[sys.argv[1]]()
    ray.shutdown()
    Path(sys.argv[2]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
