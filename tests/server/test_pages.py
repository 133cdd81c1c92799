"""Pages that answer no records: description, playground, metrics, probes, CORS."""

import re
from collections.abc import Iterator

import httpx
import pytest
from tests.server.serving import BODY, Running, running

from dicast.server.openapi import BATCH_EXAMPLE, DECISIONS_EXAMPLE, SYSTEMONE_EXAMPLE, document
from dicast.server.pages import playground
from dicast.server.settings import Settings


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as alive:
        yield alive


class TestDescription:
    def test_its_examples_are_answered(self, server: Running) -> None:
        assert server.post(SYSTEMONE_EXAMPLE).status_code == 200
        assert server.post(DECISIONS_EXAMPLE, "/v1/decisions").status_code == 200
        headers = {"content-type": "application/x-ndjson"}
        batch = server.client.post("/v1/systemone/batch", content=BATCH_EXAMPLE.encode(), headers=headers)
        assert len(batch.text.splitlines()) == 2

    def test_every_reference_leads_somewhere_and_every_path_exists(self, server: Running) -> None:
        shown = server.client.get("/openapi.json").json()
        assert shown == document()
        references = set(re.findall(r"'\$ref': '#/components/(\w+)/(\w+)'", str(shown)))
        assert references
        assert all(name in shown["components"][kind] for kind, name in references)
        for path, methods in shown["paths"].items():
            for method in methods:
                assert server.client.request(method, path).status_code not in (404, 405), path

    def test_answers_have_the_described_shape(self, server: Running) -> None:
        schemas = document()["components"]["schemas"]
        answers = server.post(BODY).json()["answers"].values()
        for answer, schema in zip(answers, schemas["Answer"]["oneOf"], strict=True):
            assert set(answer) == set(schema["required"])


class TestPlayground:
    def test_loads_nothing_from_elsewhere_and_allows_only_its_own_script(self, server: Running) -> None:
        page = server.client.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert not re.search(r"""(?:src|href)\s*=|@import|https?://(?!\$)""", page.text)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert policy.count("sha256-") == 2
        assert "style=" not in page.text

    def test_policy_belongs_to_the_page(self) -> None:
        page, policy = playground()
        assert page.count(b"<script>") == page.count(b"<style>") == 1
        assert "frame-ancestors 'none'" in policy

    def test_can_be_switched_off(self) -> None:
        with running(Settings(playground=False)) as alive:
            assert alive.client.get("/").json()["name"] == "dicast"


class TestMetrics:
    def test_count_requests_tokens_questions_and_the_engine(self) -> None:
        with running() as alive:
            for body in (BODY, BODY, {}):
                alive.post(body)
            text = alive.client.get("/metrics").text
        for line in (
            'dicast_requests_total{route="systemone",status="200"} 2.0',
            'dicast_requests_total{route="systemone",status="422"} 1.0',
            'dicast_questions_total{model="arithmetic-1",type="noul"} 2.0',
            'dicast_input_tokens_total{key="",model="arithmetic-1"} 110.0',
            'dicast_engine_answered{model="arithmetic-1"} 2.0',
            'dicast_model_weight_bytes{model="arithmetic-1"} 4000.0',
            "dicast_ready 1.0",
            "dicast_in_flight_requests 1.0",
        ):
            assert line in text
        assert "process_resident_memory_bytes" in text
        assert 'dicast_request_seconds_count{route="systemone"} 3.0' in text

    def test_paths_of_strangers_do_not_become_labels(self, server: Running) -> None:
        for number in range(5):
            server.client.get(f"/strange/{number}")
        text = server.client.get("/metrics").text
        assert "strange" not in text
        assert 'route="none",status="404"' in text


class TestProbes:
    def test_head_requests_get_no_body(self, server: Running) -> None:
        response = server.client.head("/health")
        assert (response.status_code, response.content) == (200, b"")


class TestCors:
    ORIGIN = "https://app.example.org"

    def allowed(self, response: httpx.Response) -> str | None:
        return response.headers.get("access-control-allow-origin")

    def test_is_off_by_default(self, server: Running) -> None:
        assert self.allowed(server.post(BODY, headers={"origin": self.ORIGIN})) is None
        assert server.client.options("/v1/systemone", headers={"origin": self.ORIGIN}).status_code == 405

    def test_allows_the_origins_it_is_given(self) -> None:
        with running(Settings(cors_origins=(self.ORIGIN,))) as alive:
            asked = {"origin": self.ORIGIN, "access-control-request-headers": "authorization, x-stainless-os\r"[:-1]}
            preflight = alive.client.options("/v1/systemone", headers=asked)
            assert preflight.status_code == 204
            assert self.allowed(preflight) == self.ORIGIN
            assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
            assert self.allowed(alive.post(BODY, headers={"origin": self.ORIGIN})) == self.ORIGIN
            assert self.allowed(alive.post({}, headers={"origin": self.ORIGIN})) == self.ORIGIN
            assert self.allowed(alive.post(BODY, headers={"origin": "https://other.example"})) is None
