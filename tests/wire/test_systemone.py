"""System One bodies: nullability, limits, paths in errors, and response bodies that clients can trust."""

import base64
import io
import json
from typing import Any

import pytest
from PIL import Image
from tests.wire.recorded import recorded

from dicast.errors import InputError, MediaError
from dicast.records import ChoiceAnswer, Decision, NoulAnswer, ScoreAnswer, Usage
from dicast.wire.errors import RequestError, error_response
from dicast.wire.extensions import Extensions
from dicast.wire.systemone import parse_request, response_body

NOUL = {"type": "noul", "instructions": "Refund wanted?"}


def body(**changes: Any) -> dict[str, Any]:
    fields = {"state": "I was charged twice.", "questions": {"q": NOUL}, **changes}
    return {name: value for name, value in fields.items() if value is not ...}


def question(**fields: Any) -> dict[str, Any]:
    return body(questions={"q": fields})


def refusal(fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_request(fields if isinstance(fields, bytes) else json.dumps(fields).encode())
    return caught.value


def picture(colour: str = "red", size: tuple[int, int] = (280, 280)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


class TestRequests:
    @pytest.mark.parametrize(
        "fields",
        [
            body(),
            body(model="jev-latest"),
            body(model=None),
            body(state=""),
            body(state={"a": [1, None, {"b": 2.5}]}),
            body(state=[]),
            body(unknown=1, x_trace="t"),
            question(type="noul"),
            question(type="noul", instructions=None, criteria=None),
            question(type="noul", criteria={}),
            question(type="noul", criteria={"true": "yes"}),
            question(type="noul", criteria={"false": None}),
            question(type="noul", instructions={"q": "?"}, criteria={"true": ["a"], "false": {"b": None}}),
            question(type="choice", criteria={"": None}),
            question(type="choice", criteria={"a": None, "b": {"k": None}, "1": [], "é 🛠": "x"}),
            question(type="choice", instructions=["a"], criteria={str(i): None for i in range(255)}),
            question(type="score", criteria=["only"]),
            question(type="score", instructions=None, criteria=[str(i) for i in range(10)]),
            question(type="score", criteria=[{"d": "low"}, ["hi"]]),
            question(type="noul", unknown_field=True, criteria=None),
        ],
    )
    def test_what_the_contract_allows_is_accepted(self, fields: dict[str, Any]) -> None:
        assert parse_request(json.dumps(fields).encode()).record.questions

    def test_order_of_questions_and_options_is_kept(self) -> None:
        text = b'{"state":"s","questions":{"z":{"type":"choice","criteria":{"b":null,"a":null}},"y":{"type":"noul"}}}'
        record = parse_request(text).record
        assert list(record.questions) == ["z", "y"]
        assert record.questions["z"].options == ("b", "a")

    @pytest.mark.parametrize(
        ("fields", "status", "loc", "words"),
        [
            (body(state=...), 422, ["state"], "required"),
            (body(state=None), 422, ["state"], "required"),
            (body(state=1), 422, ["state"], "string, an object or an array"),
            (body(state=True), 422, ["state"], "string, an object or an array"),
            (body(model=3), 422, ["model"], "string"),
            (body(questions=...), 422, ["questions"], "required"),
            (body(questions={}), 422, ["questions"], "at least one"),
            (body(questions=[NOUL]), 422, ["questions"], "object"),
            (body(questions={"": NOUL}), 400, ["questions"], "empty"),
            (body(questions={"q": "x"}), 422, ["questions", "q"], "object"),
            (question(instructions="x"), 422, ["questions", "q", "type"], "required"),
            (question(type="boolean"), 422, ["questions", "q", "type"], "'boolean'"),
            (question(type=["noul"]), 422, ["questions", "q", "type"], "noul"),
            (question(type="box"), 400, ["questions", "q", "type"], "not supported"),
            (question(type="noul", instructions=1), 422, ["questions", "q", "noul", "instructions"], "string"),
            (question(type="noul", criteria=["a"]), 422, ["questions", "q", "noul", "criteria"], "object"),
            (
                question(type="noul", criteria={"yes": "a"}),
                422,
                ["questions", "q", "noul", "criteria"],
                "true and false",
            ),
            (
                question(type="noul", criteria={"true": 1}),
                422,
                ["questions", "q", "noul", "criteria", "true"],
                "string",
            ),
            (question(type="choice"), 422, ["questions", "q", "choice", "criteria"], "required"),
            (question(type="choice", criteria=["a"]), 422, ["questions", "q", "choice", "criteria"], "object"),
            (question(type="choice", criteria={}), 400, ["questions", "q", "choice", "criteria"], "at least one"),
            (question(type="choice", criteria={"a": 1}), 422, ["questions", "q", "choice", "criteria", "a"], "string"),
            (question(type="score"), 422, ["questions", "q", "score", "criteria"], "required"),
            (question(type="score", criteria={"0": "a"}), 422, ["questions", "q", "score", "criteria"], "array"),
            (question(type="score", criteria="abc"), 422, ["questions", "q", "score", "criteria"], "array"),
            (question(type="score", criteria=[]), 422, ["questions", "q", "score", "criteria"], "at least one"),
            (question(type="score", criteria=["a", None]), 422, ["questions", "q", "score", "criteria", 1], "null"),
            (question(type="score", criteria=[1, 2]), 422, ["questions", "q", "score", "criteria", 0], "string"),
            ([], 422, [], "object"),
        ],
    )
    def test_what_it_does_not_allow_is_refused_with_the_path(
        self, fields: Any, status: int, loc: list[Any], words: str
    ) -> None:
        error = refusal(fields)
        shown = error_response(error)
        assert (shown.status, list(error.loc)) == (status, loc)
        assert words.lower() in shown.body["error"]["message"].lower()

    @pytest.mark.parametrize(
        ("fields", "limit", "seen"),
        [
            (question(type="choice", criteria={str(i): None for i in range(256)}), 255, 256),
            (question(type="score", criteria=[str(i) for i in range(11)]), 10, 11),
            (body(questions={str(i): NOUL for i in range(1025)}), 1024, 1025),
            (body(questions={"x" * 1025: NOUL}), 1024, 1025),
        ],
    )
    def test_limits_name_the_field_the_limit_and_what_was_seen(
        self, fields: dict[str, Any], limit: int, seen: int
    ) -> None:
        error = refusal(fields)
        assert (error.status, error.limit, error.seen) == (400, limit, seen)
        assert str(limit) in str(error)
        assert "questions" in error.field

    def test_a_question_id_with_dots_keeps_its_place_in_the_path(self) -> None:
        criteria = {str(i): None for i in range(300)}
        error = refusal(body(questions={"a": NOUL, "a.b.criteria": {"type": "choice", "criteria": criteria}}))
        assert error.loc == ("questions", "a.b.criteria", "choice", "criteria")

    def test_nesting_of_a_state_is_bounded(self) -> None:
        def nested(levels: int) -> Any:
            state: Any = "deep"
            for _ in range(levels):
                state = [state]
            return state

        assert parse_request(body(state=nested(64)))
        assert refusal(body(state=nested(65))).limit == 64

    def test_a_lone_surrogate_is_not_text(self) -> None:
        assert "surrogate" in str(refusal(b'{"state":"\\ud83d","questions":{"q":{"type":"noul"}}}'))

    def test_strict_reading_refuses_unknown_fields(self) -> None:
        with pytest.raises(RequestError, match="seed") as caught:
            parse_request(body(seed=7), strict=True)
        assert caught.value.status == 400

    @pytest.mark.parametrize("client", ["typesafe-sdk-python", "typesafe-sdk-js"])
    def test_recorded_requests_of_the_official_clients_are_read(self, client: str) -> None:
        refused = {}
        for name, case in recorded(client).items():
            if "body" not in case:
                continue
            try:
                parse_request(case["body"].encode())
            except InputError as error:
                refused[name] = type(error)
        expected = {
            "inline_base64_assets_via_extra_body": MediaError,  # the recording's picture is cut short
            "client_accept_unknown_question_type_dict": RequestError,
            "client_256_options_sent_as_is": RequestError,
        }
        assert refused == (
            expected if client.endswith("python") else {"noul_no_instructions_and_null_state_and_extra": RequestError}
        )


class TestExtensions:
    def test_everything_beyond_the_contract_is_under_one_key(self) -> None:
        asked = {"isolate": True, "truncation": "state_end", "logits": True, "deadline_ms": 500, "cache": None}
        extensions = parse_request(body(x_dicast=asked)).x_dicast
        assert extensions == Extensions(isolate=True, truncation="state_end", logits=True, deadline_ms=500)
        assert extensions.encode_options.truncation == "state_end"

    @pytest.mark.parametrize(
        ("asked", "name"),
        [
            ([], None),
            ({"isolated": True}, "isolated"),
            ({"isolate": 1}, "isolate"),
            ({"truncation": "middle"}, "truncation"),
            ({"deadline_ms": 0}, "deadline_ms"),
            ({"deadline_ms": True}, "deadline_ms"),
            ({"deadline_ms": 10**9}, "deadline_ms"),
            ({"max_state_tokens": 2.5}, "max_state_tokens"),
        ],
    )
    def test_mistakes_in_it_are_shown(self, asked: Any, name: str | None) -> None:
        error = refusal(body(x_dicast=asked))
        assert error.loc == (("x_dicast",) if name is None else ("x_dicast", name))


class TestMedia:
    def test_placeholders_become_references_in_the_order_of_first_mention(self) -> None:
        fields = {
            "state": {"first": "see B1", "then": ["B and B1 again"]},
            "questions": {
                "A": {"type": "choice", "instructions": "Is A like B?", "criteria": {"A": "as in A", "no": None}}
            },
            "assets": {
                "A": {"type": "image", "format": "png", "data_base64": encoded(picture("red"))},
                "B": {"format": "jpg", "data_base64": encoded(picture("green"))},
                "B1": {"data_base64": encoded(picture("blue"))},
            },
        }
        record = parse_request(json.dumps(fields).encode()).record
        assert record.state == {"first": "see image 1", "then": ["image 2 and image 1 again"]}
        assert record.questions["A"].instructions == "Is image 3 like image 2?"
        assert record.questions["A"].criteria == {"A": "as in image 3", "no": None}
        assert [image.getpixel((0, 0)) for image in record.images] == [(0, 0, 255), (0, 128, 0), (255, 0, 0)]

    def test_top_level_images_come_first_and_are_referred_to_by_position(self) -> None:
        listed = [
            f"data:image/png;base64,{encoded(picture('red'))}",
            {"content_type": "image/png", "base64": encoded(picture("green"))},
        ]
        fields = body(
            state="compare image 1 with PHOTO",
            images=listed,
            assets={"PHOTO": {"data_base64": encoded(picture("blue"))}},
        )
        record = parse_request(fields).record
        assert record.state == "compare image 1 with image 3"
        assert len(record.images) == 3

    def test_parts_of_a_multipart_body_are_used_once_each(self) -> None:
        fields = body(state="A and B", assets={"A": {"part": "asset-0"}, "B": {"part": "asset-1"}})
        parts = {"asset-0": picture("red"), "asset-1": picture("blue")}
        assert len(parse_request(fields, parts=parts).record.images) == 2
        for wrong, words in (
            ({"asset-0": picture()}, "no part named"),
            ({**parts, "asset-2": picture()}, "no asset uses"),
            (None, "no part named"),
        ):
            with pytest.raises(RequestError, match=words):
                parse_request(fields, parts=wrong)
        twice = body(state="A and B", assets={"A": {"part": "asset-0"}, "B": {"part": "asset-0"}})
        with pytest.raises(RequestError, match="two assets"):
            parse_request(twice, parts={"asset-0": picture()})

    @pytest.mark.parametrize(
        ("assets", "status", "words"),
        [
            ({}, 422, "empty"),
            ([], 422, "object"),
            ({"IMG": "x"}, 422, "object"),
            ({" ": {"data_base64": "x"}}, 400, "blank"),
            ({"x" * 1025: {"data_base64": "x"}}, 400, "1025 bytes"),
            ({"IMG": {"type": "audio", "data_base64": "x"}}, 422, "image or video"),
            ({"IMG": {"format": "png"}}, 422, "data_base64"),
            ({"IMG": {"data_base64": 3}}, 422, "string"),
            ({"UNUSED": {"data_base64": encoded(picture())}}, 400, "mentions"),
        ],
    )
    def test_wrong_assets_are_refused(self, assets: Any, status: int, words: str) -> None:
        error = refusal(body(state="see IMG", assets=assets))
        assert error.status == status
        assert words in str(error)

    @pytest.mark.parametrize("data", ["", "?!", encoded(b"not a picture"), encoded(picture()[:60])])
    def test_unreadable_pictures_are_refused_by_name(self, data: str) -> None:
        with pytest.raises(MediaError, match="IMG"):
            parse_request(body(state="IMG", assets={"IMG": {"data_base64": data}}))

    def test_a_listed_image_is_never_a_path_or_a_url(self) -> None:
        for source in ("/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/x.png"):
            with pytest.raises(MediaError):
                parse_request(body(images=[source]))


class TestResponses:
    def decision(self) -> Decision[None]:
        return Decision(
            {
                "n": NoulAnswer({"true": 0.97312, "false": 0.02688}, 0.946, {"true": 3.0, "false": -0.6}),
                "c": ChoiceAnswer({"a": 1 / 3, "b": 1 / 3 + 1e-9, "c": 1 / 3 - 1e-9}, 0.0),
                "s": ScoreAnswer(
                    {"0": 0.0, "1": 1e-9, "2": 1 - 1e-9}, 1.0, legend={"0": "low", "1": {"d": 1}, "2": ["x"]}
                ),
            },
            Usage(12, cached_tokens=5),
            "m",
        )

    def test_the_body_is_the_contract(self) -> None:
        shown = response_body(self.decision())
        assert shown == {
            "model": "m",
            "answers": {
                "n": {"type": "noul", "noul": 0.9731},
                "c": {
                    "type": "choice",
                    "choice": "b",
                    "confidence": 0.0,
                    "probabilities": {"a": 0.3333, "b": 0.3334, "c": 0.3333},
                },
                "s": {
                    "type": "score",
                    "score": 2.0,
                    "confidence": 1.0,
                    "legend": {"0": "low", "1": {"d": 1}, "2": ["x"]},
                    "probabilities": {"0": 0.0, "1": 0.0, "2": 1.0},
                },
            },
            "usage": {"input_tokens": 12, "output_tokens": 0},
        }

    def test_numbers_are_floats_and_counts_are_integers(self) -> None:
        text = json.dumps(response_body(self.decision(), digits=2))
        assert '"2": 1.0' in text
        assert '"input_tokens": 12,' in text

    def test_the_choice_is_the_most_probable_of_what_is_shown(self) -> None:
        for digits in (2, 4, None):
            answer = response_body(self.decision(), digits=digits)["answers"]["c"]
            assert answer["probabilities"][answer["choice"]] == max(answer["probabilities"].values())

    def test_another_confidence_rule_can_be_asked_for(self) -> None:
        shown = response_body(self.decision(), confidence="pmax")["answers"]
        assert shown["c"]["confidence"] == 0.3333
        assert "confidence" not in shown["n"]

    def test_extensions_are_reported_only_when_asked_for(self) -> None:
        shown = response_body(self.decision(), asked=Extensions(logits=True, entropy=True, cache=True))
        facts = shown["x_dicast"]
        assert facts["answers"]["n"] == {"logits": {"true": 3.0, "false": -0.6}, "entropy": 0.1237}
        assert facts["cache"] == {"cached_tokens": 5}

    def test_a_cut_state_is_always_reported(self) -> None:
        cut = Decision(self.decision().answers, Usage(12, state_tokens_dropped=3), "m")
        assert response_body(cut)["x_dicast"] == {"truncated": True, "state_tokens_dropped": 3}

    def test_thresholds_of_the_checkpoint_are_reported(self) -> None:
        answer = ChoiceAnswer({"a": 0.9, "b": 0.1}, 0.8, accepted=True, prediction_set=("a",))
        shown = response_body(Decision({"c": answer}, Usage(1)))
        assert shown["x_dicast"]["answers"]["c"] == {"accepted": True, "prediction_set": ["a"]}
