"""One body for both client families, whatever went wrong."""

import pickle

import pytest

from dicast import errors
from dicast.wire.errors import RequestError, error_response, invalid, over_limit, refused, retry_headers


def test_a_wrong_shape_is_an_issue_list_with_the_exact_path() -> None:
    error = invalid(
        "must be an object", ("questions", "a.b", "noul", "criteria"), "dict_type", field="questions.a.b.criteria"
    )
    shown = error_response(error)
    assert shown.status == 422
    assert shown.body == {
        "error": {
            "message": "questions.a.b.criteria: must be an object",
            "type": "invalid_request_error",
            "param": "questions.a.b.criteria",
            "code": "validation_error",
        },
        "detail": [
            {"loc": ["body", "questions", "a.b", "noul", "criteria"], "msg": "must be an object", "type": "dict_type"}
        ],
    }


def test_a_broken_limit_is_a_plain_text_and_tells_programs_the_numbers() -> None:
    shown = error_response(over_limit("too many", ("questions",), limit=255, seen=256))
    assert (shown.status, shown.body["detail"]) == (400, "questions: too many")
    assert shown.body["x_dicast"] == {"limit": 255, "seen": 256}


@pytest.mark.parametrize(
    ("error", "status", "code", "error_type"),
    [
        (errors.TokenBudgetError("too long", limit=10, seen=20), 400, "context_length_exceeded", "max_tokens_exceeded"),
        (errors.MediaError("broken", field="assets.A"), 400, "invalid_media", "api_usage_error"),
        (errors.CapabilityError("blind"), 400, "unsupported", "api_usage_error"),
        (errors.MissingDependencyError("pip install x"), 400, "unsupported", "api_usage_error"),
        (errors.ModelNotFoundError("no such"), 400, "model_not_found", "api_usage_error"),
        (errors.ConfigError("bad"), 400, "invalid_request", "api_usage_error"),
        (refused("no", ("model",)), 400, "invalid_request", "api_usage_error"),
        (errors.OverloadedError("full", retry_after_ms=1234), 503, "overloaded", "overloaded_error"),
        (errors.DeadlineExceededError("late"), 503, "deadline_exceeded", "timeout"),
        (errors.EngineClosedError("closing"), 503, "shutting_down", "overloaded_error"),
        (errors.EngineError("broke"), 503, "engine_error", "server_error"),
        (RuntimeError("secret path /srv/x"), 500, "internal_error", "server_error"),
    ],
)
def test_every_error_has_a_status_and_both_shapes(error: Exception, status: int, code: str, error_type: str) -> None:
    shown = error_response(error)
    assert shown.status == status
    assert shown.body["error"]["code"] == code
    assert shown.body["detail"]["error_type"] == error_type
    assert shown.body["detail"]["message"] == shown.body["error"]["message"]


def test_a_record_error_is_a_limit_or_a_shape() -> None:
    assert error_response(errors.RecordError("too many", field="questions", limit=1, seen=2)).status == 400
    assert error_response(errors.RecordError("bad", field="state")).body["detail"][0]["loc"] == ["body", "state"]


def test_an_unexpected_error_tells_nothing() -> None:
    assert "secret" not in str(error_response(RuntimeError("secret")).body)


def test_busy_errors_say_when_to_come_back() -> None:
    assert error_response(errors.OverloadedError("full", retry_after_ms=1234)).headers == {
        "retry-after-ms": "1234",
        "retry-after": "2",
    }
    assert retry_headers(0) == {"retry-after-ms": "1", "retry-after": "1"}


def test_a_request_error_survives_pickling() -> None:
    error = over_limit("too many", ("questions", 0), limit=2, seen=3)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, RequestError)
    assert error_response(again) == error_response(error)
