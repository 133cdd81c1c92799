"""The API over HTTP: both contracts, models, encodings, multipart, extensions, batch, and errors in both shapes."""

import base64
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
import zstandard
from PIL import Image
from tests.server.serving import BODY, CHOICE, INFO, NOUL, SCORE, Arithmetic, Running, running
from tests.wire.recorded import recorded

from dicast.server.settings import Settings

PREDICATE = {"type": "predicate", "name": "refund", "instructions": "Refund wanted?"}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as alive:
        yield alive


def picture(size: tuple[int, int] = (280, 300)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, "PNG")
    return file.getvalue()


class TestSystemOne:
    def test_answers_every_type(self, server: Running) -> None:
        response = server.post(BODY)
        assert response.status_code == 200
        shown = response.json()
        assert shown["model"] == "arithmetic-1"
        assert list(shown["answers"]) == ["refund", "team", "anger"]
        assert [set(answer) for answer in shown["answers"].values()] == [
            {"type", "noul"},
            {"type", "choice", "confidence", "probabilities"},
            {"type", "score", "confidence", "legend", "probabilities"},
        ]
        assert shown["usage"] == {"input_tokens": 55, "output_tokens": 0}
        assert "x_dicast" not in shown

    def test_both_request_id_headers_are_on_every_response(self, server: Running) -> None:
        for response in (server.post(BODY), server.post({}), server.client.get("/nothing")):
            assert response.headers["x-request-id"] == response.headers["x-typesafe-request-id"]
            assert response.headers["x-request-id"].startswith("req_")
        given = server.post(BODY, headers={"x-request-id": "trace-1"})
        assert given.headers["x-request-id"] == "trace-1"
        assert server.post(BODY, headers={"x-request-id": "a b"}).headers["x-request-id"].startswith("req_")

    @pytest.mark.parametrize(
        "name",
        ["jev-latest", "jev-1.13.0", "clef", "clef-flash", "dicast-1", "arithmetic-1", None,
         "typesafe/jev-1.13", "~typesafe/jev-latest", "@cf/cloudflare/clef", "Cloudflare/clef-flash"],
    )  # fmt: skip
    def test_names_of_the_family_mean_the_default_model(self, server: Running, name: str | None) -> None:
        assert server.post({**BODY, "model": name}).json()["model"] == "arithmetic-1"

    @pytest.mark.parametrize("name", ["jev", "Arithmetic-1", "gpt-6-luna", "", "nothing"])
    def test_an_unknown_model_is_a_400_that_lists_what_there_is(self, server: Running, name: str) -> None:
        response = server.post({**BODY, "model": name})
        assert response.status_code == 400
        shown = response.json()
        assert shown["detail"]["error_type"] == "api_usage_error"
        assert shown["error"]["code"] == "model_not_found"
        assert "arithmetic-1" in shown["error"]["message"]

    def test_any_model_name_can_be_allowed(self) -> None:
        with running(Settings(any_model=True)) as alive:
            assert alive.post({**BODY, "model": "nothing"}).status_code == 200

    @pytest.mark.parametrize("prefix", ["/v1", "/v1/v1", "/prefix/v1", "/inference/v1", "/api/alpha", ""])
    def test_any_prefix_works(self, server: Running, prefix: str) -> None:
        assert server.post(BODY, f"{prefix}/systemone").status_code == 200
        assert server.post(BODY, f"{prefix}/systemone/").status_code == 200

    @pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity"])
    def test_compressed_bodies(self, server: Running, encoding: str) -> None:
        text = json.dumps({**BODY, "state": "word " * 300}).encode()
        data = {"gzip": gzip.compress, "zstd": zstandard.compress, "identity": bytes}[encoding](text)
        response = server.client.post("/v1/systemone", content=data, headers={**JSON, "content-encoding": encoding})
        assert response.status_code == 200

    def test_images_by_base64_and_by_multipart_give_the_same_answer(self, server: Running) -> None:
        body = {"state": "IMG", "questions": {"q": NOUL}, "assets": {"IMG": {"format": "png"}}}
        body["assets"]["IMG"]["data_base64"] = base64.b64encode(picture()).decode()
        plain = server.post(body)
        assert plain.status_code == 200, plain.text
        request = {**body, "assets": {"IMG": {"type": "image", "part": "asset-0"}}}
        parts = {
            "request": (None, json.dumps(request), "application/json"),
            "asset-0": ("asset-0", picture(), "image/png"),
        }
        multipart = server.client.post("/v1/systemone", files=parts)
        assert multipart.json() == plain.json()
        other = server.post(
            {**body, "images": ["data:image/png;base64," + base64.b64encode(picture((300, 300))).decode()]}
        )
        assert other.json()["answers"] != plain.json()["answers"]

    def test_recorded_multipart_of_the_official_client_is_read(self, server: Running) -> None:
        case = recorded("typesafe-sdk-python")["image_attached_reference_in_text_and_in_instructions"]
        parts: dict[str, Any] = {"request": (None, case["parts"][0]["text"], "application/json")}
        parts |= {name: (name, picture(), "image/png") for name in ("asset-0", "asset-1")}
        response = server.client.post("/v1/systemone", files=parts, headers={"typesafe-danger-zone-images": "true"})
        assert response.status_code == 200, response.text

    def test_a_model_that_cannot_see_names_one_that_can(self) -> None:
        blind = Arithmetic(replace(INFO, images=False))
        with running(models={"blind": blind}) as alive:
            response = alive.post({**BODY, "images": [{"base64": base64.b64encode(picture()).decode()}]})
            assert response.status_code == 400
            assert "clef-flash" in response.json()["error"]["message"]
            assert response.json()["error"]["code"] == "unsupported"

    def test_too_many_tokens_are_a_400_with_counts(self, server: Running) -> None:
        response = server.post({**BODY, "state": "x" * 3000})
        assert response.status_code == 400
        shown = response.json()
        assert shown["detail"]["error_type"] == "max_tokens_exceeded"
        assert shown["x_dicast"] == {"limit": 2000, "seen": 3035}

    def test_a_record_that_breaks_the_model_fails_alone(self, server: Running) -> None:
        response = server.post({**BODY, "state": "boom"})
        assert response.status_code == 503
        assert server.post(BODY).status_code == 200


class TestExtensions:
    def test_facts_are_reported_when_asked_for(self, server: Running) -> None:
        asked = {"logits": True, "entropy": True, "timings": True, "cache": True, "isolate": False}
        facts = server.post({**BODY, "x_dicast": asked}).json()["x_dicast"]
        assert set(facts["answers"]["team"]) == {"logits", "entropy"}
        assert set(facts["timings"]) == {"read_ms", "decide_ms", "total_ms"}
        assert facts["cache"] == {"cached_tokens": 0}
        assert facts["isolate"] is False

    def test_a_state_is_cut_only_on_request_and_the_cut_is_reported(self, server: Running) -> None:
        body = {**BODY, "state": "x" * 3000, "x_dicast": {"truncation": "state_end"}}
        assert server.post(body).json()["x_dicast"] == {"truncated": True, "state_tokens_dropped": 1035}

    def test_isolation_makes_answers_independent_of_ids_order_and_other_questions(self, server: Running) -> None:
        asked = {"isolate": True}
        together = server.post({**BODY, "x_dicast": asked}).json()
        others = {"Q 🙂": SCORE, "zz": NOUL, "x": CHOICE}
        renamed = server.post({**BODY, "questions": others, "x_dicast": asked}).json()
        alone = server.post({**BODY, "questions": {"a": SCORE}, "x_dicast": asked}).json()
        assert together["answers"]["anger"] == renamed["answers"]["Q 🙂"] == alone["answers"]["a"]
        assert together["answers"]["refund"] == renamed["answers"]["zz"]
        assert together["usage"]["input_tokens"] > 55


class TestDecisions:
    def test_answers_by_position(self, server: Running) -> None:
        body = {"model": "gpt-6-luna", "input": "x", "questions": [{**PREDICATE, "name": None}, PREDICATE, PREDICATE]}
        response = server.post(body, "/v1/decisions")
        assert response.status_code == 200
        shown = response.json()
        assert [answer["name"] for answer in shown["answers"]] == [None, "refund", "refund"]
        assert len({answer["probability"] for answer in shown["answers"]}) == 1
        assert shown["usage"]["total_tokens"] == shown["usage"]["input_tokens"]

    @pytest.mark.parametrize("client", ["openai-python-decisions", "openai-js-decisions"])
    def test_recorded_requests_are_answered(self, client: str) -> None:
        with running(Settings(any_model=True)) as alive:
            for name, case in recorded(client).items():
                if case["method"] == "POST" and name != "all_input_item_kinds":
                    response = alive.client.post(case["target"], content=case["body"].encode(), headers=JSON)
                    assert response.status_code == 200, (name, response.text)

    def test_a_question_that_is_too_long_alone_is_refused_and_the_others_are_answered(self, server: Running) -> None:
        long = {"type": "predicate", "name": "long", "instructions": "x" * 2500}
        answers = server.post({"input": "x", "questions": [long, PREDICATE]}, "/v1/decisions").json()["answers"]
        assert answers[0] == {"type": "refusal", "name": "long"}
        assert answers[1]["type"] == "predicate"
        alone = server.post({"input": "x", "questions": [long]}, "/v1/decisions")
        assert (alone.status_code, alone.json()["error"]["code"]) == (400, "context_length_exceeded")
        everything = server.post({"input": "x" * 2500, "questions": [PREDICATE, long]}, "/v1/decisions")
        assert (everything.status_code, everything.json()["error"]["param"]) == (400, "input")

    def test_a_question_with_an_image_is_refused_by_a_model_that_cannot_see(self) -> None:
        image = {"type": "input_image", "image_url": "data:image/png;base64," + base64.b64encode(picture()).decode()}
        seeing = {**PREDICATE, "name": "seeing", "instructions": [image]}
        with running(models={"blind": Arithmetic(replace(INFO, images=False))}) as alive:
            answers = alive.post({"input": "x", "questions": [seeing, PREDICATE]}, "/v1/decisions").json()["answers"]
            assert [answer["type"] for answer in answers] == ["refusal", "predicate"]

    def test_mistakes_are_a_400_in_openais_words(self, server: Running) -> None:
        response = server.post({"input": "x", "questions": [{"type": "predicate"}]}, "/v1/decisions")
        assert response.status_code == 400
        assert response.json()["error"] == {
            "message": "questions[0].instructions: is required",
            "type": "invalid_request_error",
            "param": "questions[0].instructions",
            "code": "missing_required_parameter",
        }


HEAD = {"model": "jev-latest", "questions": {"refund": NOUL}}


class TestBatch:
    def send(self, server: Running, *lines: Any, **headers: str) -> httpx.Response:
        text = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
        headers = {"content-type": "application/x-ndjson", **{name.replace("_", "-"): v for name, v in headers.items()}}
        if headers.get("content-encoding"):
            text = gzip.compress(text)
        return server.client.post("/v1/systemone/batch", content=text, headers=headers)

    def test_states_are_answered_in_order_as_single_requests_are(self, server: Running) -> None:
        response = self.send(server, HEAD, *({"id": i, "state": f"s{i}"} for i in range(200)))
        answers = [json.loads(line) for line in response.text.splitlines()]
        assert [answer["index"] for answer in answers] == list(range(200))
        assert [answer["id"] for answer in answers] == list(range(200))
        alone = server.post({**HEAD, "state": "s117"}).json()
        assert answers[117]["answers"] == alone["answers"]
        assert response.headers["content-type"] == "application/x-ndjson"

    def test_a_bad_line_fails_alone(self, server: Running) -> None:
        lines = [{"state": "a"}, b"{nonsense\n", {"state": 3}, {"id": "x"}, {"state": "boom"}, {"state": "b"}]
        answers = [json.loads(line) for line in self.send(server, HEAD, *lines).text.splitlines()]
        assert ["error" in answer for answer in answers] == [False, True, True, True, True, False]
        assert answers[3]["id"] == "x"
        assert answers[3]["detail"][0]["loc"] == ["body", "state"]

    def test_a_bad_first_line_is_an_ordinary_error(self, server: Running) -> None:
        for first, status in (({}, 422), ({**HEAD, "state": "x"}, 400), (b"nonsense", 422), (b"", 422),
                              ({**HEAD, "images": []}, 400), ({**HEAD, "model": "none"}, 400)):  # fmt: skip
            assert self.send(server, first).status_code == status, first

    def test_compressed_batches(self, server: Running) -> None:
        response = self.send(server, HEAD, {"state": "a"}, content_encoding="gzip")
        assert len(response.text.splitlines()) == 1

    def test_too_many_states_end_the_stream_with_an_error(self) -> None:
        with running(Settings(max_batch_lines=3)) as alive:
            lines = self.send(alive, HEAD, *({"state": "a"} for _ in range(5))).text.splitlines()
            assert ["error" in json.loads(line) for line in lines] == [False, False, False, True]


class TestRefusals:
    @pytest.mark.parametrize(
        ("content", "headers", "status", "code"),
        [
            (b"{", JSON, 422, "invalid_json"),
            (b"", JSON, 422, "invalid_json"),
            (b"{}", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
            (b"{}", {}, 415, "unsupported_media_type"),
            (b"{}", {**JSON, "content-encoding": "br"}, 415, "unsupported_encoding"),
            (b"{}", {**JSON, "content-encoding": "gzip"}, 400, "invalid_encoding"),
            (b"{}", {"content-type": "multipart/form-data; boundary=x"}, 400, "invalid_multipart"),
            (b"{}", {"content-type": "multipart/form-data"}, 400, "invalid_multipart"),
            (b"[" * 100_000, JSON, 400, "limit_exceeded"),
            (gzip.compress(bytes(40_000_000)), {**JSON, "content-encoding": "gzip"}, 413, "body_too_large"),
            (zstandard.compress(bytes(40_000_000)), {**JSON, "content-encoding": "zstd"}, 413, "body_too_large"),
        ],
    )
    def test_bodies_that_cannot_be_read(
        self, server: Running, content: bytes, headers: dict[str, str], status: int, code: str
    ) -> None:
        response = server.client.post("/v1/systemone", content=content, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)

    def test_a_body_over_the_limit_is_refused_while_it_arrives(self) -> None:
        with running(Settings(max_body=2000)) as alive:
            assert alive.post({**BODY, "state": "x" * 2000}).status_code == 413
            pieces = (b"x" * 500 for _ in range(10))
            assert alive.client.post("/v1/systemone", content=pieces, headers=JSON).status_code == 413
            assert alive.post({**BODY, "state": "x" * 1000}).status_code == 200

    @pytest.mark.parametrize(
        ("method", "path", "status", "allow"),
        [
            ("GET", "/v1/systemone", 405, "POST"),
            ("PUT", "/v1/decisions", 405, "POST"),
            ("POST", "/v1/models", 405, "GET"),
            ("GET", "/v1/nothing", 404, None),
            ("POST", "/v1/systemones", 404, None),
            ("OPTIONS", "/v1/systemone", 405, "POST"),
        ],
    )
    def test_unknown_paths_and_methods(
        self, server: Running, method: str, path: str, status: int, allow: str | None
    ) -> None:
        response = server.client.request(method, path)
        assert (response.status_code, response.headers.get("allow")) == (status, allow)
        assert isinstance(response.json()["detail"], str)

    def test_strict_mode_refuses_unknown_fields(self) -> None:
        with running(Settings(strict=True)) as alive:
            assert alive.post({**BODY, "seed": 1}).json()["error"]["param"] == "seed"


class TestModels:
    def test_the_listing_is_both_families(self, server: Running) -> None:
        server.post(BODY)
        shown = server.client.get("/v1/models").json()
        assert [model["id"] for model in shown["data"]] == ["arithmetic-1", "jev-latest"]
        assert shown["data"][0] == {
            "id": "arithmetic-1",
            "object": "model",
            "created": 1795996800,
            "owned_by": "dicast",
        }
        assert shown["models"][0]["name"] == "arithmetic-1"
        assert shown["models"][0]["release_date"] == "2026-11-30"
        assert "arithmetic" in shown["models"][0]["description"]

    def test_one_model_by_name(self, server: Running) -> None:
        assert server.client.get("/v1/models/arithmetic-1").json()["id"] == "arithmetic-1"
        assert server.client.get("/v1/models/nothing").status_code == 404

    def test_several_models_are_chosen_by_name(self) -> None:
        offered = {"first": Arithmetic(), "second": Arithmetic()}
        with running(models=offered) as alive:
            names = [alive.post({**BODY, "model": name}).json()["model"] for name in ("second", "first", "jev-latest")]
            assert names == ["second", "first", "first"]
