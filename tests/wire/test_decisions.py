"""Decisions bodies: conversations to one state, questions to options and back, refusals, errors in OpenAI's words."""

import base64
import io
import json
from typing import Any

import pytest
from PIL import Image
from tests.wire.recorded import recorded

from dicast.errors import CapabilityError, InputError, MediaError, TokenBudgetError
from dicast.records import Choice, ChoiceAnswer, Decision, Noul, NoulAnswer, Score, ScoreAnswer, Usage
from dicast.wire.decisions import parse_request, response_body
from dicast.wire.errors import RequestError, error_response

PREDICATE = {"type": "predicate", "name": "refund", "instructions": "The customer wants a refund."}
TEXT = {"type": "input_text", "text": "x"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}
CHOICES = [{"value": "billing", "description": "Payments"}, {"value": "technical"}, {"value": True}]
LEVELS = [{"label": "calm"}, {"label": "angry", "description": "shouting"}]


def body(*questions: Any, **changes: Any) -> dict[str, Any]:
    fields = {"model": "m", "input": "x", "questions": list(questions) or [PREDICATE], **changes}
    return {name: value for name, value in fields.items() if value is not ...}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def choice(*choices: Any) -> dict[str, Any]:
    return {"type": "choice", "instructions": "?", "choices": list(choices)}


def refusal(fields: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_request(json.dumps(fields).encode())
    return caught.value


def data_url() -> str:
    file = io.BytesIO()
    Image.new("RGB", (280, 280), "red").save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


class TestInput:
    @pytest.mark.parametrize(
        ("value", "state"),
        [
            ("", ""),
            ("text", "text"),
            ([{"role": "user", "content": "text"}], "text"),
            (user({"type": "input_text", "text": "text"}), "text"),
            (user({"type": "input_json", "data": {"a": [1, None]}}), {"a": [1, None]}),
            (user({"type": "input_json", "data": [{"a": 1}, {}]}), [{"a": 1}, {}]),
            (user({"type": "input_text", "text": "see"}, {"type": "input_json", "data": {}}), ["see", {}]),
            ([{"role": "developer", "content": "judge"}], [{"role": "developer", "content": "judge"}]),
            (
                [
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"id":1}'},
                    {"type": "function_call_output", "call_id": "c", "output": "found"},
                    {"type": "custom_tool_call", "call_id": "d", "name": "sh", "input": "ls -l"},
                    {"type": "custom_tool_call_output", "call_id": "d", "output": [TEXT]},
                ],
                [
                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"id": 1}},
                    {"type": "function_call_output", "call_id": "c", "output": "found"},
                    {"type": "custom_tool_call", "call_id": "d", "name": "sh", "input": "ls -l"},
                    {"type": "custom_tool_call_output", "call_id": "d", "output": "x"},
                ],
            ),
        ],
    )
    def test_becomes_one_state(self, value: Any, state: Any) -> None:
        assert parse_request(body(input=value)).record.state == state

    def test_images_are_shown_in_order_and_referred_to(self) -> None:
        image = {"type": "input_image", "image_url": data_url(), "detail": "low"}
        question = {**PREDICATE, "instructions": [{"type": "input_text", "text": "like this?"}, image]}
        record = parse_request(body(question, input=user({"type": "input_text", "text": "look"}, image))).record
        assert record.state == ["look", "image 1"]
        assert record.questions["refund"].instructions == ["like this?", "image 2"]
        assert len(record.images) == 2

    @pytest.mark.parametrize(
        ("value", "param"),
        [
            (3, "input"),
            ([], "input"),
            (["x"], "input[0]"),
            ([{"content": "x"}], "input[0].role"),
            ([{"role": "user"}], "input[0].content"),
            ([{"role": "user", "content": []}], "input[0].content"),
            ([{"role": "user", "content": [{"type": "audio"}]}], "input[0].content[0].type"),
            ([{"role": "system", "content": [{"type": "input_image"}]}], "input[0].content[0].type"),
            ([{"role": "assistant", "content": "x", "phase": "middle"}], "input[0].phase"),
            ([{"type": "reasoning"}], "input[0].type"),
            ([{"type": "function_call", "call_id": "c", "name": "f"}], "input[0].arguments"),
            ([{"type": "function_call_output", "call_id": "c", "output": "x"}], "input[0].call_id"),
            (
                [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "status": "x"}],
                "input[0].status",
            ),
            (user({"type": "input_text"}), "input[0].content[0].text"),
            (user({**TEXT, "prompt_cache_breakpoint": 1}), "input[0].content[0].prompt_cache_breakpoint"),
            (user({"type": "input_image", "file_id": "f"}), "input[0].content[0].file_id"),
            (user({"type": "input_image", "image_url": "/etc/passwd"}), "input[0].content[0].image_url"),
            (user({"type": "input_image", "image_url": "data:,", "detail": "x"}), "input[0].content[0].detail"),
            (user({"type": "input_json", "data": "x"}), "input[0].content[0].data"),
            (user({"type": "input_json", "data": [1]}), "input[0].content[0].data"),
        ],
    )
    def test_wrong_items_name_the_parameter(self, value: Any, param: str) -> None:
        shown = error_response(refusal(body(input=value)))
        assert (shown.status, shown.body["error"]["param"]) == (400, param)

    def test_json_parts_have_limits(self) -> None:
        deep: Any = {}
        for _ in range(32):
            deep = {"a": deep}
        for data, limit in ((deep, 32), ({"a": list(range(10_000))}, 10_000), ({"a": "é" * 140_000}, 256 * 1024)):
            assert refusal(body(input=user({"type": "input_json", "data": data}))).limit == limit

    def test_a_url_is_refused_unless_the_server_allows_its_host(self) -> None:
        image = {"type": "input_image", "image_url": "https://example.org/a.png"}
        with pytest.raises(MediaError, match=r"input\[0\].content\[0\].image_url"):
            parse_request(body(input=user(image)))


class TestQuestions:
    def test_become_a_record(self) -> None:
        asked = parse_request(
            body(
                PREDICATE,
                {"type": "choice", "instructions": "Which team?", "choices": CHOICES},
                {"type": "score", "name": "anger", "instructions": "How angry?", "levels": LEVELS},
            )
        )
        assert asked.record.questions == {
            "refund": Noul("The customer wants a refund."),
            "1": Choice("Which team?", {"billing": "Payments", "technical": None, "true": None}),
            "anger": Score("How angry?", ["calm", "angry: shouting"]),
        }

    def test_names_that_are_missing_repeated_or_numbers_get_keys_of_their_own(self) -> None:
        names = ["a", None, "1", "a", "", "4"]
        questions = [{**PREDICATE, "name": name} for name in names]
        asked = parse_request(body(*questions))
        assert len(asked.record.questions) == len(names)
        assert [question.name for question in asked.asked] == names

    def test_a_boolean_and_the_same_word_are_two_options(self) -> None:
        values = ["true", True, "false", False, "true (boolean)"]
        question = {"type": "choice", "instructions": "?", "choices": [{"value": value} for value in values]}
        asked = parse_request(body(question))
        assert list(asked.asked[0].values.values()) == values
        assert len(asked.record.questions["0"].options) == 5

    @pytest.mark.parametrize(
        ("question", "param"),
        [
            ("x", "questions[0]"),
            ({"type": "predicate"}, "questions[0].instructions"),
            ({**PREDICATE, "type": "noul"}, "questions[0].type"),
            ({**PREDICATE, "name": 3}, "questions[0].name"),
            ({**PREDICATE, "instructions": 3}, "questions[0].instructions"),
            ({"type": "choice", "instructions": "?"}, "questions[0].choices"),
            (choice(CHOICES[0]), "questions[0].choices"),
            (choice(*CHOICES, {}), "questions[0].choices[3].value"),
            (
                choice(*CHOICES, {"value": 3}),
                "questions[0].choices[3].value",
            ),
            (choice(*CHOICES, *CHOICES), "questions[0].choices[3].value"),
            ({"type": "score", "instructions": "?", "levels": LEVELS * 6}, "questions[0].levels"),
            ({"type": "score", "instructions": "?", "levels": ["calm", "angry"]}, "questions[0].levels[0]"),
            ({"type": "score", "instructions": "?", "levels": [{"label": 1}, {}]}, "questions[0].levels[0].label"),
            (
                {**PREDICATE, "instructions": [{**TEXT, "prompt_cache_breakpoint": {"mode": "explicit"}}]},
                "questions[0].instructions[0].prompt_cache_breakpoint",
            ),
        ],
    )
    def test_wrong_questions_name_the_parameter(self, question: Any, param: str) -> None:
        shown = error_response(refusal(body(question)))
        assert (shown.status, shown.body["error"]["param"]) == (400, param)

    @pytest.mark.parametrize(
        ("changes", "param"),
        [
            ({"questions": []}, "questions"),
            ({"questions": [PREDICATE] * 401}, "questions"),
            ({"questions": ...}, "questions"),
            ({"input": ...}, "input"),
            ({"model": 3}, "model"),
            ({"prompt_cache_key": 3}, "prompt_cache_key"),
            ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
            ({"x_dicast": {"nothing": 1}}, "x_dicast.nothing"),
        ],
    )
    def test_wrong_fields_name_the_parameter(self, changes: dict[str, Any], param: str) -> None:
        assert error_response(refusal(body(**changes))).body["error"]["param"] == param

    def test_a_model_that_cannot_see_leaves_questions_with_images_to_be_refused(self) -> None:
        image = {"type": "input_image", "image_url": data_url()}
        seeing = {**PREDICATE, "name": "seeing", "instructions": [image]}
        asked = parse_request(body(seeing, PREDICATE), images=False)
        assert list(asked.record.questions) == ["refund"]
        assert [question.name for question in asked.asked] == ["seeing", "refund"]
        for fields in (body(seeing), body(input=user(image))):
            with pytest.raises(CapabilityError):
                parse_request(fields, images=False)


class TestAnswers:
    def test_come_back_by_position_with_their_names(self) -> None:
        asked = parse_request(
            body(
                {"type": "score", "name": "anger", "instructions": "?", "levels": LEVELS},
                {"type": "choice", "instructions": "?", "choices": CHOICES},
                PREDICATE,
                {**PREDICATE, "name": "gone"},
            )
        )
        decision = Decision(
            {
                "anger": ScoreAnswer({"0": 0.25, "1": 0.75}, 0.5),
                "1": ChoiceAnswer({"billing": 0.2, "technical": 0.1, "true": 0.7}, 0.55),
                "refund": NoulAnswer({"true": 0.97, "false": 0.03}, 0.94),
            },
            Usage(100, cached_tokens=40),
            "m-1",
        )
        assert response_body(decision, asked) == {
            "model": "m-1",
            "answers": [
                {
                    "type": "score",
                    "name": "anger",
                    "score": 0.75,
                    "confidence": 0.5,
                    "probabilities": [
                        {"value": 0, "label": "calm", "probability": 0.25},
                        {"value": 1, "label": "angry", "probability": 0.75},
                    ],
                },
                {
                    "type": "choice",
                    "name": None,
                    "choice": True,
                    "confidence": 0.55,
                    "probabilities": [
                        {"value": "billing", "probability": 0.2},
                        {"value": "technical", "probability": 0.1},
                        {"value": True, "probability": 0.7},
                    ],
                },
                {"type": "predicate", "name": "refund", "probability": 0.97},
                {"type": "refusal", "name": "gone"},
            ],
            "usage": {
                "input_tokens": 100,
                "input_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 0},
                "output_tokens": 0,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 100,
            },
        }

    def test_errors_about_the_record_are_told_in_the_requests_terms(self) -> None:
        asked = parse_request(body({**PREDICATE, "name": None}, PREDICATE))
        about = TokenBudgetError("too long", field="questions.refund.instructions", limit=1, seen=2)
        assert asked.in_request_terms(about).field == "questions[1].instructions"
        assert asked.in_request_terms(TokenBudgetError("too long", field="state")).field == "input"


@pytest.mark.parametrize("client", ["openai-python-decisions", "openai-js-decisions"])
def test_recorded_requests_of_the_official_clients_are_read(client: str) -> None:
    refused = {}
    for name, case in recorded(client).items():
        if "body" not in case:
            continue
        try:
            assert parse_request(case["body"].encode()).asked
        except InputError as error:
            refused[name] = type(error)
    broken_picture = {"all_input_item_kinds": MediaError}  # the recording's picture is 8 bytes long
    assert refused == (broken_picture if "python" in client else {})
