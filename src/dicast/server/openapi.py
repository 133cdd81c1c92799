"""The API's description for machines and people: OpenAPI 3.1 with the schemas of both contracts and working examples.

Built once from plain dicts. The examples are sent to a running server by the tests, so they stay true.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

from dicast._version import __version__
from dicast.records import MAX_LEVELS, MAX_OPTIONS, MAX_QUESTIONS
from dicast.wire import decisions

Schema: TypeAlias = dict[str, Any]

SYSTEMONE_EXAMPLE: Schema = {
    "model": "jev-latest",
    "state": {"subject": "Charged twice", "body": "I was charged twice for March. Please refund me today."},
    "questions": {
        "refund": {"type": "noul", "instructions": "Does the customer want money back?"},
        "team": {
            "type": "choice",
            "instructions": "Which team should handle this?",
            "criteria": {"billing": "Payments, invoices, refunds", "technical": "Bugs and outages", "sales": None},
        },
        "anger": {
            "type": "score",
            "instructions": "How angry is the customer?",
            "criteria": ["Calm", "Frustrated", "Very angry"],
        },
    },
}
DECISIONS_EXAMPLE: Schema = {
    "model": "gpt-6-luna",
    "input": "I was charged twice for March. Please refund me today.",
    "questions": [
        {"type": "predicate", "name": "refund", "instructions": "The customer wants money back."},
        {
            "type": "choice",
            "name": "team",
            "instructions": "Which team should handle this?",
            "choices": [{"value": "billing", "description": "Payments, refunds"}, {"value": "technical"}],
        },
        {
            "type": "score",
            "name": "anger",
            "instructions": "How angry is the customer?",
            "levels": [{"label": "calm"}, {"label": "frustrated"}, {"label": "very angry"}],
        },
    ],
}
BATCH_EXAMPLE = (
    '{"questions": {"refund": {"type": "noul", "instructions": "Does the customer want money back?"}}}\n'
    '{"id": "t-1", "state": "I was charged twice."}\n'
    '{"id": "t-2", "state": "How do I change my avatar?"}\n'
)


@cache
def document() -> Schema:
    """The whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dicast",
            "version": __version__,
            "description": "A state and typed questions in, a probability for every allowed option out.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "."}],
        "security": [{}, {"bearer": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {**_systemone_schemas(), **_decisions_schemas(), **_common_schemas()},
            "responses": _error_responses(),
        },
    }


def _paths() -> Schema:
    return {
        "/v1/systemone": {
            "post": _operation(
                "systemOne",
                "Answer questions about a state",
                {"application/json": _body("SystemOneRequest", SYSTEMONE_EXAMPLE), "multipart/form-data": _MULTIPART},
                _body("SystemOneResponse"),
            )
        },
        "/v1/systemone/batch": {
            "post": _operation(
                "systemOneBatch",
                "Answer the same questions about many states; JSON lines in and out, streamed",
                {"application/x-ndjson": {"schema": {"type": "string"}, "example": BATCH_EXAMPLE}},
                {"schema": {"type": "string"}},
                answer_type="application/x-ndjson",
            )
        },
        "/v1/decisions": {
            "post": _operation(
                "decisions",
                "The same in the form of OpenAI's Decisions API",
                {"application/json": _body("DecisionsRequest", DECISIONS_EXAMPLE)},
                _body("DecisionsResponse"),
            )
        },
        "/v1/models": {"get": _page("listModels", "Models, in both families' form", _ref("ModelList"))},
        "/health": {"get": _page("health", "The process is alive", {"type": "object"})},
        "/ready": {"get": _page("ready", "The default model is loaded; 503 until then", {"type": "object"})},
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Prometheus metrics",
                "responses": {"200": {"description": "Metrics", "content": {"text/plain": {"schema": _TEXT}}}},
            }
        },
    }


def _operation(
    name: str, summary: str, content: Schema, answer: Schema, *, answer_type: str = "application/json"
) -> Schema:
    errors = {str(status): {"$ref": f"#/components/responses/{label}"} for status, label in _ERRORS.items()}
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": content},
        "responses": {"200": {"description": "Answered", "content": {answer_type: answer}}, **errors},
    }


def _page(name: str, summary: str, schema: Schema) -> Schema:
    answer = {"description": summary, "content": {"application/json": {"schema": schema}}}
    return {"operationId": name, "summary": summary, "responses": {"200": answer}}


def _body(schema: str, example: Schema | None = None) -> Schema:
    return {"schema": _ref(schema), **({"example": example} if example else {})}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Schema, required: list[str] | None = None, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, **({"required": required} if required else {}), **more}


def _map_of(schema: Schema, **more: Any) -> Schema:
    return {"type": "object", "additionalProperties": schema, **more}


_TEXT: Schema = {"type": "string"}
_CONTENT: Schema = {"type": ["string", "object", "array", "null"]}
_SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_FLAG: Schema = {"type": "boolean", "default": False}
_MULTIPART: Schema = {
    "schema": _object({"request": _ref("SystemOneRequest")}, ["request"], additionalProperties={"type": "string"}),
    "encoding": {"request": {"contentType": "application/json"}},
}
_ERRORS = {
    400: "Refused",
    401: "Unauthorized",
    413: "TooLarge",
    422: "Invalid",
    429: "TooMany",
    503: "Overloaded",
}
_ERROR_TEXTS = {
    "Refused": "A limit, an unknown model, too many tokens, or media that cannot be read",
    "Unauthorized": "No API key, or a wrong one",
    "TooLarge": "The body is too large",
    "Invalid": "The body has the wrong shape; detail lists where",
    "TooMany": "Too many requests; see retry-after-ms",
    "Overloaded": "Busy, past the deadline or shutting down; see retry-after-ms",
}


def _error_responses() -> Schema:
    content = {"application/json": {"schema": _ref("Error")}}
    return {label: {"description": text, "content": content} for label, text in _ERROR_TEXTS.items()}


def _systemone_schemas() -> Schema:
    choice = _map_of(_CONTENT, minProperties=1, maxProperties=MAX_OPTIONS)
    levels = {"type": "array", "items": {"type": ["string", "object", "array"]}, "minItems": 1, "maxItems": MAX_LEVELS}
    sides = {"type": ["object", "null"], "properties": {"true": _CONTENT, "false": _CONTENT}}
    asset = _object(
        {
            "type": {"enum": ["image", "video"], "default": "image"},
            "format": _TEXT,
            "data_base64": {"type": "string", "contentEncoding": "base64"},
            "part": _TEXT,
        }
    )
    return {
        "SystemOneRequest": _object(
            {
                "model": {"type": ["string", "null"]},
                "state": {"type": ["string", "object", "array"]},
                "questions": _map_of(_ref("Question"), minProperties=1, maxProperties=MAX_QUESTIONS),
                "assets": _map_of(asset, minProperties=1),
                "images": {"type": "array", "items": _ref("Media")},
                "videos": {"type": "array", "items": _ref("Media")},
                "x_dicast": _ref("Extensions"),
            },
            ["state", "questions"],
        ),
        "Question": {
            "oneOf": [
                _question("noul", sides, required=False),
                _question("choice", choice),
                _question("score", levels),
            ],
            "discriminator": {"propertyName": "type"},
        },
        "Media": {
            "oneOf": [
                {"type": "string", "description": "base64 data URL"},
                _object({"content_type": _TEXT, "base64": _TEXT}, ["base64"]),
            ]
        },
        "SystemOneResponse": _object(
            {
                "model": _TEXT,
                "answers": _map_of(_ref("Answer")),
                "usage": _object({"input_tokens": _COUNT, "output_tokens": _COUNT}, ["input_tokens", "output_tokens"]),
                "x_dicast": {"type": "object"},
            },
            ["model", "answers", "usage"],
        ),
        "Answer": {"oneOf": _answer_schemas(), "discriminator": {"propertyName": "type"}},
    }


def _question(kind: str, criteria: Schema, *, required: bool = True) -> Schema:
    properties = {"type": {"const": kind}, "instructions": _CONTENT, "criteria": criteria}
    return _object(properties, ["type", "criteria"] if required else ["type"])


def _answer_schemas() -> list[Schema]:
    shares = _map_of(_SHARE)
    return [
        _object({"type": {"const": "noul"}, "noul": _SHARE}, ["type", "noul"]),
        _object(
            {"type": {"const": "choice"}, "choice": _TEXT, "confidence": _SHARE, "probabilities": shares},
            ["type", "choice", "confidence", "probabilities"],
        ),
        _object(
            {
                "type": {"const": "score"},
                "score": {"type": "number", "minimum": 0},
                "confidence": _SHARE,
                "legend": _map_of({"type": ["string", "object", "array"]}),
                "probabilities": shares,
            },
            ["type", "score", "confidence", "legend", "probabilities"],
        ),
    ]


def _decisions_schemas() -> Schema:
    named = {"name": {"type": ["string", "null"]}, "instructions": {"type": ["string", "array"]}}
    choice = _object({"value": {"type": ["string", "boolean"]}, "description": _TEXT}, ["value"])
    level = _object({"label": _TEXT, "description": _TEXT}, ["label"])
    least = decisions.MIN_OPTIONS
    choices = {"type": "array", "items": choice, "minItems": least, "maxItems": MAX_OPTIONS}
    levels = {"type": "array", "items": level, "minItems": least, "maxItems": MAX_LEVELS}
    questions = {
        "oneOf": [
            _object({"type": {"const": "predicate"}, **named}, ["type", "instructions"]),
            _object({"type": {"const": "choice"}, **named, "choices": choices}, ["type", "instructions", "choices"]),
            _object({"type": {"const": "score"}, **named, "levels": levels}, ["type", "instructions", "levels"]),
        ]
    }
    return {
        "DecisionsRequest": _object(
            {
                "model": _TEXT,
                "input": {"type": ["string", "array"]},
                "questions": {
                    "type": "array",
                    "items": questions,
                    "minItems": 1,
                    "maxItems": decisions.MAX_QUESTIONS,
                },
                "prompt_cache_key": {"type": ["string", "null"]},
                "prompt_cache_options": {"type": ["object", "null"]},
                "safety_identifier": {"type": ["string", "null"]},
                "x_dicast": _ref("Extensions"),
            },
            ["input", "questions"],
        ),
        "DecisionsResponse": _object(
            {
                "model": _TEXT,
                "answers": {"type": "array", "items": {"type": "object"}},
                "usage": _object(
                    {
                        "input_tokens": _COUNT,
                        "input_tokens_details": _object({"cached_tokens": _COUNT, "cache_write_tokens": _COUNT}),
                        "output_tokens": _COUNT,
                        "output_tokens_details": _object({"reasoning_tokens": _COUNT}),
                        "total_tokens": _COUNT,
                    }
                ),
            },
            ["model", "answers", "usage"],
        ),
    }


def _common_schemas() -> Schema:
    error = _object({"message": _TEXT, "type": _TEXT, "param": {"type": ["string", "null"]}, "code": _TEXT})
    listed = _object({"name": _TEXT, "description": _TEXT, "release_date": _TEXT}, ["name"])
    return {
        "Extensions": _object(
            {
                "isolate": {"type": "boolean", "description": "Score each question alone under a neutral id."},
                "truncation": {"enum": ["refuse", "state_end"], "default": "refuse"},
                "max_state_tokens": {"type": "integer", "minimum": 1},
                "max_pixels": {"type": "integer", "minimum": 1},
                "logits": _FLAG,
                "entropy": _FLAG,
                "timings": _FLAG,
                "cache": _FLAG,
                "deadline_ms": {"type": "integer", "minimum": 1},
            },
            additionalProperties=False,
        ),
        "Error": _object({"error": error, "detail": {}, "x_dicast": {"type": "object"}}, ["error", "detail"]),
        "ModelList": _object(
            {
                "object": {"const": "list"},
                "data": {"type": "array", "items": {"type": "object"}},
                "models": {"type": "array", "items": listed},
            }
        ),
    }
