"""Who answers the questions of an evaluation: a model in this process, or any System One or Decisions server.

Both give a `Reply` per record, so that every measure treats them alike. Servers differ in small ways; the reader here
is tolerant (an envelope named ``result`` or ``response``, missing confidence, legend or usage, lists for maps, integers
for floats) but never makes up a probability silently. Knows nothing of gold labels.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dicast.errors import ConfigError, InputError, MissingDependencyError, RecordError
from dicast.records import Choice, Noul, Question, Record, Score

if TYPE_CHECKING:
    import httpx

    from dicast.model import DecisionModel

Api = Literal["systemone", "decisions"]
RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
TRIES = 4
LONGEST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one record.

    Attributes:
        probabilities: question id -> option id -> probability, normalised. A refused question is missing.
        ms: milliseconds that the caller waited; a record in a batch of n gets an n-th of the batch's time.
        tokens: input tokens, where known.
        error: why there is no answer at all; empty when there is one.
        bare: ids of questions answered without probabilities, which then stand for certainty.
        accepted: question id -> whether the model's own threshold accepted the answer, where it says so.
        sets: question id -> the model's own prediction set, where it gives one.
    """

    probabilities: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ms: float = 0.0
    tokens: int | None = None
    error: str = ""
    bare: tuple[str, ...] = ()
    accepted: Mapping[str, bool] = field(default_factory=dict)
    sets: Mapping[str, Sequence[str]] = field(default_factory=dict)


class Backend(Protocol):
    """Answers records."""

    @property
    def name(self) -> str:
        """Name of the model, for reports."""

    @property
    def chunk(self) -> int:
        """How many records `answer` likes to get at once."""

    def describe(self) -> dict[str, Any]:
        """Facts about the model for the result file."""

    def answer(self, records: Sequence[Record]) -> list[Reply]:
        """One reply per record, in order. A record that cannot be answered gets a reply with an error."""


class LocalBackend:
    """A model in this process.

    Args:
        model: as `dicast.load` returns it.
        batch: records scored together.
    """

    def __init__(self, model: DecisionModel, *, batch: int = 16) -> None:
        self.model = model
        self.chunk = batch

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.info.name

    def describe(self) -> dict[str, Any]:
        """Facts about the model, with the calibration in force."""
        facts = {key: value for key, value in asdict(self.model.info).items() if value not in ("", None, {})}
        return facts | {"batch": self.chunk, "calibrated": self.model.calibration is not None}

    def answer(self, records: Sequence[Record]) -> list[Reply]:
        """Score the records together; when one of them is refused, one by one."""
        started = time.perf_counter()
        try:
            decisions = self.model.decide_batch(records)
        except InputError as error:
            if len(records) == 1:
                return [Reply(error=f"refused: {error}")]
            return [self.answer([record])[0] for record in records]
        ms = (time.perf_counter() - started) * 1000 / len(records)
        return [
            Reply(
                {question_id: answer.probabilities for question_id, answer in decision.items()},
                ms,
                decision.usage.input_tokens,
                accepted={key: answer.accepted for key, answer in decision.items() if answer.accepted is not None},
                sets={key: answer.prediction_set for key, answer in decision.items() if answer.prediction_set},
            )
            for decision in decisions
        ]


class ServerBackend:
    """A server behind a URL.

    Args:
        url: base URL, to which ``/v1/systemone`` or ``/v1/decisions`` is appended unless it already ends so.
        model: name sent with each request.
        api: which contract the server speaks; a URL that ends with the path decides by itself.
        key: sent as a bearer token.
        concurrency: requests under way at once.
        timeout_s: for one request.
        client: for tests; made here when None.

    Raises:
        MissingDependencyError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str = "jev-latest",
        api: Api = "systemone",
        key: str = "none",
        concurrency: int = 4,
        timeout_s: float = 120.0,
        client: httpx.Client | None = None,
    ) -> None:
        if client is None:
            try:
                import httpx
            except ImportError:
                raise MissingDependencyError("evaluating a server needs httpx: pip install httpx") from None
            client = httpx.Client(timeout=timeout_s)
        self.url, self.api = _endpoint(url, api)
        self.requested, self.chunk, self.concurrency = model, concurrency * 4, concurrency
        self._client, self._key = client, key
        self._served = ""

    @property
    def name(self) -> str:
        """Name of the model as the server gave it, or as it was asked for."""
        return self._served or self.requested

    def describe(self) -> dict[str, Any]:
        """Facts about the server."""
        return {"name": self.name, "url": self.url, "api": self.api, "concurrency": self.concurrency}

    def answer(self, records: Sequence[Record]) -> list[Reply]:
        """Ask for every record, `concurrency` at a time."""
        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(pool.map(self._ask, records))

    def _ask(self, record: Record) -> Reply:
        make_body = systemone_body if self.api == "systemone" else decisions_body
        body = {"model": self.requested, **make_body(record)}
        started = time.perf_counter()
        try:
            answer = self._post(body)
            ms = (time.perf_counter() - started) * 1000
            self._served = str(answer.get("model") or self._served)
            return read_reply(record, answer, ms)
        except (RecordError, OSError) as error:
            return Reply(ms=(time.perf_counter() - started) * 1000, error=f"failed: {error}"[:300])

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        import httpx

        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        for tried in range(1, TRIES + 1):
            try:
                response = self._client.post(self.url, content=content, headers=headers)
            except httpx.TransportError as error:
                if tried == TRIES:
                    raise OSError(f"no response ({type(error).__name__})") from error
                time.sleep(0.25 * 2**tried)
                continue
            if response.status_code == 200:
                return unwrap(response.json())
            if response.status_code not in RETRIED or tried == TRIES:
                break
            time.sleep(min(retry_wait(response.headers, 0.25 * 2**tried), LONGEST_WAIT_S))
        raise OSError(f"HTTP {response.status_code}: {response.text[:200]}")


def systemone_body(record: Record) -> dict[str, Any]:
    """State and questions in System One form; images as a top-level list."""
    body: dict[str, Any] = {"state": record.state, "questions": {}}
    for question_id, question in record.questions.items():
        asked: dict[str, Any] = {"type": question.type}
        if question.instructions is not None:
            asked["instructions"] = question.instructions
        if isinstance(question, Score):
            asked["criteria"] = list(question.criteria)
        elif isinstance(question, Choice):
            asked["criteria"] = criteria_of(question)
        elif question.criteria is not None:
            asked["criteria"] = dict(question.criteria)
        body["questions"][question_id] = asked
    return body | {key: list(value) for key, value in (("images", record.images), ("videos", record.videos)) if value}


def decisions_body(record: Record) -> dict[str, Any]:
    """Input and questions in Decisions form. A predicate has no criteria: a noul's are put in its instructions."""
    parts: list[dict[str, Any]] = [{"type": "input_image", "image_url": image} for image in record.images]
    if isinstance(record.state, dict):
        parts.insert(0, {"type": "input_json", "data": record.state})
    else:
        parts.insert(0, {"type": "input_text", "text": _text(record.state)})
    questions = [_decisions_question(question_id, question) for question_id, question in record.questions.items()]
    return {"input": [{"role": "user", "content": parts}], "questions": questions}


def unwrap(body: Any) -> dict[str, Any]:
    """The answer inside an envelope named ``result`` or ``response``, or the body itself.

    Raises:
        RecordError: no object with answers.
    """
    for _ in range(3):
        if isinstance(body, dict) and "answers" in body:
            return body
        inner = body.get("result", body.get("response")) if isinstance(body, dict) else None
        if inner is None:
            break
        body = inner
    raise RecordError("the response has no answers", field="answers")


def read_reply(record: Record, body: Mapping[str, Any], ms: float) -> Reply:
    """Read a System One or Decisions response.

    Raises:
        RecordError: answers of an unknown shape, or probabilities that do not sum to 1 within rounding.
    """
    probabilities: dict[str, dict[str, float]] = {}
    bare: list[str] = []
    answers = _by_question(record, body["answers"])
    for question_id, question in record.questions.items():
        answer = answers.get(question_id)
        if not isinstance(answer, Mapping) or answer.get("type") == "refusal":
            continue
        found, certain = _probabilities(question, answer, f"answers.{question_id}")
        if found is not None:
            probabilities[question_id] = found
            bare += [question_id] if certain else []
    usage = body.get("usage") or {}
    tokens = usage.get("input_tokens") if isinstance(usage, Mapping) else None
    count = int(tokens) if tokens is not None else None
    return Reply(
        probabilities, ms, count, "", tuple(bare), _extra(body, "accepted", bool), _extra(body, "prediction_set", list)
    )


def retry_wait(headers: Mapping[str, str], otherwise: float) -> float:
    """Seconds to wait before trying again: ``retry-after-ms``, then ``Retry-After``, else the given backoff."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            wait = float(headers[name]) * unit
        except (KeyError, ValueError):
            continue
        if wait >= 0:
            return wait
    return otherwise


def _extra(body: Mapping[str, Any], name: str, kind: type[Any]) -> dict[str, Any]:
    """What a Dicast server adds to its answers under ``x_dicast``, where it has the right kind."""
    extra = body.get("x_dicast")
    answers = extra.get("answers") if isinstance(extra, Mapping) else None
    if not isinstance(answers, Mapping):
        return {}
    found = {key: value.get(name) for key, value in answers.items() if isinstance(value, Mapping)}
    return {key: value for key, value in found.items() if isinstance(value, kind)}


def _by_question(record: Record, answers: Any) -> dict[str, Any]:
    if isinstance(answers, Mapping):
        return dict(answers)
    if not isinstance(answers, list) or len(answers) != len(record.questions):
        raise RecordError(f"{len(record.questions)} answers expected", field="answers")
    ids = zip(record.questions, answers, strict=True)
    return {(answer.get("name") if isinstance(answer, Mapping) else None) or asked: answer for asked, answer in ids}


def _probabilities(question: Question, answer: Mapping[str, Any], field: str) -> tuple[dict[str, float] | None, bool]:
    """Normalised probabilities, and whether they only stand for a bare choice."""
    if question.type == "noul":
        p = answer.get("noul", answer.get("probability"))
        if p is None:
            return None, False
        true = _number(p, field)
        return {"true": true, "false": 1.0 - true}, False
    given = answer.get("probabilities")
    if given is None:
        return _certain(question, answer)
    by_option = _as_map(question, given)
    values = {option: _number(by_option.get(option, 0.0), f"{field}.{option}") for option in question.options}
    total = sum(values.values())
    if abs(total - 1.0) > max(0.05, 0.005 * len(values)):
        raise RecordError(f"probabilities sum to {total:.3f}", field=field, seen=total)
    return {option: value / total for option, value in values.items()}, False


def _certain(question: Question, answer: Mapping[str, Any]) -> tuple[dict[str, float] | None, bool]:
    chosen = answer.get("choice") if question.type == "choice" else answer.get("score")
    if isinstance(chosen, int | float) and not isinstance(chosen, bool):
        chosen = str(round(chosen))
    if str(chosen) not in question.options:
        return None, False
    return {option: float(option == str(chosen)) for option in question.options}, True


def _as_map(question: Question, given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return {str(option): p for option, p in given.items()}
    if not isinstance(given, list):
        raise RecordError("probabilities must be a map or a list", field="probabilities")
    if all(isinstance(item, Mapping) for item in given):
        return {_value_id(item.get("value", item.get("label"))): item.get("probability") for item in given}
    return dict(zip(question.options, given, strict=False))


def _value_id(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _number(value: Any, field: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise RecordError(f"{value!r} is not a probability", field=field) from None
    if not 0.0 <= number <= 1.0:
        raise RecordError(f"{value!r} is not a probability", field=field)
    return number


def _decisions_question(question_id: str, question: Question) -> dict[str, Any]:
    instructions = _text(question.instructions) if question.instructions is not None else question_id
    asked: dict[str, Any] = {"name": question_id, "instructions": instructions}
    if isinstance(question, Noul):
        meanings = [f"{key}: {_text(text)}" for key, text in (question.criteria or {}).items()]
        return asked | {"type": "predicate", "instructions": "\n".join([instructions, *meanings])}
    if isinstance(question, Score):
        return asked | {"type": "score", "levels": [{"label": _text(level)} for level in question.criteria]}
    described = criteria_of(question)
    choices = [
        {"value": key} | ({} if text is None else {"description": _text(text)}) for key, text in described.items()
    ]
    return asked | {"type": "choice", "choices": choices}


def criteria_of(question: Choice) -> dict[str, Any]:
    """Option id -> description of a choice question."""
    assert isinstance(question.criteria, Mapping)  # Choice turns a sequence of ids into a mapping
    return dict(question.criteria)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _endpoint(url: str, api: Api) -> tuple[str, Api]:
    base = url.rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise ConfigError("a server's URL starts with http:// or https://", field="model", seen=url)
    if base.endswith("/systemone"):
        return base, "systemone"
    if base.endswith("/decisions"):
        return base, "decisions"
    return (f"{base}/{api}" if base.endswith("/v1") else f"{base}/v1/{api}"), api
