"""The Clef release's own names with the release's behaviour, on Dicast's encoder, head and backbone.

Code written for the release's `joint_schema_model.py` runs after changing its import:

    from dicast.compat.joint_schema_model import load_release_model, systemone

    model, processor = load_release_model("path/to/clef-flash", device="cuda")
    print(systemone(model, processor, {"model": "clef-flash", "state": ..., "questions": ...}))

What the release does and Dicast's own API does not, this module does too: control-token strings in user text become
control tokens, the end of a long state is cut without notice, `confidence` is the largest probability, nothing is
checked beyond the release's five rules, and no calibration is applied. New code should use :func:`dicast.load`.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dicast.batching import TYPE_CODES, collate
from dicast.checkpoints import load_head
from dicast.encoding import (
    DEFAULT_MAX_LENGTH,
    NOUL_DESCRIPTIONS,
    ClefEncoder,
    ClefEncoding,
    MediaEncoding,
    QuestionSpans,
    render,
)
from dicast.errors import DicastError
from dicast.models.base import EncodeOptions
from dicast.models.clef import ClefNetwork
from dicast.models.head import EvidenceLayer, HeadConfig
from dicast.models.head import JointSchemaHead as _Head
from dicast.models.qwen import QwenBackbone, load_backbone
from dicast.models.qwen_media import QwenMediaReader
from dicast.records import Choice, Noul, Question, Record, Score

__all__ = [
    "ClefModel",
    "EncodedQuestion",
    "EncodedRecord",
    "EvidenceRoutingLayer",
    "JointSchemaHead",
    "collate_records",
    "encode_record",
    "load_release_model",
    "question_options",
    "render",
    "systemone",
    "systemone_answer",
]

SYSTEM_PROMPT = (
    "Read the complete state and schema. Decide every field jointly. "
    "Each answer must be exactly one of that field's allowed options."
)
QUESTION_TYPES = dict(TYPE_CODES)
IMAGE_PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO_PLACEHOLDER = "<|vision_start|><|video_pad|><|vision_end|>"
MEDIA_BATCH_KEYS = ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw")
MEDIA_TOKEN_KEYS = ("mm_token_type_ids",)
_TYPE_NAMES = {code: name for name, code in TYPE_CODES.items()}
_TYPE_ERROR = "{}: type must be noul, choice, or score"


@dataclass(frozen=True)
class EncodedQuestion:
    """A question's spans ``[start, end)`` in the sequence; the type is a code (noul 0, choice 1, score 2)."""

    question_id: str
    question_type: int
    question_span: tuple[int, int]
    option_spans: tuple[tuple[int, int], ...]
    option_ids: tuple[str, ...]


@dataclass(frozen=True)
class EncodedRecord:
    """Token ids of a record, its questions, and its media as the processor prepared them."""

    input_ids: tuple[int, ...]
    questions: tuple[EncodedQuestion, ...]
    record_id: str
    media: dict[str, Any] | None = None


class EvidenceRoutingLayer(EvidenceLayer):
    """An evidence layer by the release's constructor and forward: ``queries [O, W]``, ``memory [S, W]``, no mask."""

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float = 0.0) -> None:
        super().__init__(HeadConfig(width, width, 1, 1, heads, feedforward, dropout))

    def forward(self, queries: Tensor, memory: Tensor, *_: Any) -> Tensor:
        """Queries after reading the memory, batched or not."""
        single = queries.dim() == 2
        rows, keys = (queries[None], memory[None]) if single else (queries, memory)
        out = super().forward(rows, keys, torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device))
        return out[0] if single else out


class JointSchemaHead(_Head):
    """The head by the release's forward signature: one list of tensors ``[n_options]`` per record."""

    def forward(  # type: ignore[override]
        self,
        hidden_states: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor,
        records: Sequence[EncodedRecord],
        output_embedding_weight: Tensor,
    ) -> list[list[Tensor]]:
        """Logits per record and question, in the order of `option_ids`.

        Args:
            hidden_states: ``[B, L, H]`` final hidden states.
            input_ids: ``[B, L]``; the records hold the same ids, so only the shape matters.
            attention_mask: ``[B, L]``; likewise.
            records: the encoded records, one per row.
            output_embedding_weight: ``[V, H]`` weight of the output embedding.
        """
        batch = collate([_encoding(record) for record in records], pad_id=0)
        network = ClefNetwork(_Rows(output_embedding_weight), self)  # type: ignore[arg-type]
        logits = _Head.forward(self, network.head_inputs(batch, hidden_states[:, : batch.ids.shape[1]]))
        logits = logits.to(hidden_states.dtype)
        return [_split(row, record) for row, record in zip(logits, records, strict=True)]


class _Rows(nn.Module):
    """The part of a backbone that the head needs: rows of the output embedding."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self._weight = (weight,)  # a tuple hides it from the module tree

    def lexical_rows(self, ids: Tensor) -> Tensor:
        """Rows ``[U, H]`` in the embedding's dtype."""
        weight = self._weight[0]
        return weight[ids.to(weight.device)]


class ClefModel(nn.Module):
    """Backbone and head; the forward takes what :func:`collate_records` gives.

    Args:
        language_model: `Qwen3_5ForConditionalGeneration` or `Qwen3_5ForCausalLM` of transformers.
        head: a :class:`JointSchemaHead`.
    """

    def __init__(self, language_model: Any, head: JointSchemaHead) -> None:
        super().__init__()
        self.language_model = language_model
        self.head = head

    def forward(self, batch: Mapping[str, Any]) -> list[list[Tensor]]:
        """Logits per record and question, in the order of `option_ids`."""
        records = batch["records"]
        arrays = collate([_encoding(record) for record in records], pad_id=0)
        backbone = QwenBackbone(self.language_model)
        hidden = backbone(arrays)
        weight = self.language_model.lm_head.weight
        logits: list[list[Tensor]] = self.head(hidden, batch["input_ids"], batch["attention_mask"], records, weight)
        return logits


def question_options(question: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Option ids with descriptions, in the order in which the model reads them."""
    kind = question["type"]
    if kind == "noul":
        return list((NOUL_DESCRIPTIONS | dict(question.get("criteria") or {})).items())
    criteria = question["criteria"]
    if kind == "choice":
        return sorted(((str(option), text) for option, text in criteria.items()), key=lambda pair: pair[0])
    return [(str(index), text) for index, text in enumerate(criteria)]


def encode_record(
    tokenizer: Any,
    record: Mapping[str, Any],
    max_length: int = DEFAULT_MAX_LENGTH,
    max_state_tokens: int | None = None,
    processor: Any | None = None,
) -> EncodedRecord:
    """Token ids and spans of a record given as a dict; the end of a long state is cut without notice.

    Raises:
        ValueError: the schema alone does not fit, or a question is malformed.
    """
    media = QwenMediaReader(processor) if processor is not None else None
    encoder = ClefEncoder.sharing(_encoder(tokenizer), media=media)
    questions = {str(key): _question(str(key), value) for key, value in record["questions"].items()}
    plain = Record(
        record["state"],
        questions,
        tuple(record.get("images") or ()),
        tuple(record.get("videos") or ()),
        record.get("media_kwargs") or {},
    )
    options = EncodeOptions("state_end", max_length, max_state_tokens, "parse")
    encoding = encoder.encode(plain, options)
    return EncodedRecord(
        tuple(encoding.ids.tolist()),
        tuple(
            EncodedQuestion(q.id, TYPE_CODES[q.type], q.question_span, q.option_spans, q.options)
            for q in encoding.questions
        ),
        str(record.get("id", "unknown")),
        _media_dict(encoding),
    )


def collate_records(records: Sequence[EncodedRecord], pad_token_id: int, device: torch.device | str) -> dict[str, Any]:
    """A right-padded batch: `input_ids` and `attention_mask` ``[B, L]``, `records`, and `media` tensors."""
    arrays = collate([_encoding(record) for record in records], pad_id=pad_token_id)
    batch: dict[str, Any] = {
        "input_ids": torch.from_numpy(arrays.ids).to(device),
        "attention_mask": torch.from_numpy(arrays.mask.astype(np.int64)).to(device),
        "records": list(records),
        "media": {},
    }
    for name in MEDIA_BATCH_KEYS:
        parts = [record.media[name] for record in records if record.media and name in record.media]
        if parts:
            batch["media"][name] = torch.cat(parts).to(device)
    if arrays.media:
        types = torch.zeros(arrays.ids.shape, dtype=torch.long)
        for row, offset, media in arrays.media:
            types[row, offset : offset + len(media.token_types)] = torch.tensor(media.token_types)
        batch["media"]["mm_token_type_ids"] = types.to(device)
    return batch


def load_release_model(
    model_path: str | Path,
    device: str | torch.device = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    **from_pretrained_kwargs: Any,
) -> tuple[ClefModel, Any]:
    """The model of a release folder, backbone and head both in `dtype`, and its processor.

    Raises:
        CheckpointError: the folder is incomplete, corrupt or of the wrong kind.
    """
    from transformers import AutoProcessor

    family: Any = AutoProcessor
    folder, where = Path(model_path), torch.device(device)
    backbone = load_backbone(folder, device=where, dtype=dtype, vision=True, **from_pretrained_kwargs)
    plain = load_head(folder, hidden_size=backbone.hidden_size)
    with torch.device("meta"):
        head = JointSchemaHead(**{name: getattr(plain.config, name) for name in HeadConfig.__slots__})
    head.load_state_dict(plain.state_dict(), strict=True, assign=True)
    model = ClefModel(backbone.model, head.to(where, dtype)).eval()
    return model, family.from_pretrained(folder, trust_remote_code=False)


def systemone(
    model: ClefModel, processor: Any, request: Mapping[str, Any], max_length: int = DEFAULT_MAX_LENGTH
) -> dict[str, Any]:
    """Answer one System One request body; the release's checks, rounding, tie rule and confidence.

    Raises:
        ValueError: the request breaks one of the release's rules.
    """
    _check(request)
    tokenizer = getattr(processor, "tokenizer", processor)
    encoded = encode_record(tokenizer, request, max_length=max_length, processor=processor)
    device = next(model.parameters()).device
    with torch.inference_mode():
        logits = model(collate_records([encoded], tokenizer.pad_token_id, device))[0]
    answers = {}
    for question, values in zip(encoded.questions, logits, strict=True):
        p = dict(zip(question.option_ids, torch.softmax(values.float(), dim=-1).tolist(), strict=True))
        answers[question.question_id] = systemone_answer(request["questions"][question.question_id], p)
    usage = {"input_tokens": len(encoded.input_ids), "output_tokens": 0}
    return {"model": request["model"], "answers": answers, "usage": usage}


def systemone_answer(question: Mapping[str, Any], probabilities: Mapping[str, float]) -> dict[str, Any]:
    """The answer body of one question: 4 decimals, ties to the first option in request order, confidence = p_max."""
    kind = question["type"]
    if kind == "noul":
        return {"type": "noul", "noul": round(probabilities["true"], 4)}
    if kind == "choice":
        ordered = {str(option): probabilities[str(option)] for option in question["criteria"]}
        choice = max(ordered, key=ordered.__getitem__)
        return {
            "type": "choice",
            "choice": choice,
            "confidence": round(ordered[choice], 4),
            "probabilities": {option: round(p, 4) for option, p in ordered.items()},
        }
    levels = {str(index): probabilities[str(index)] for index in range(len(question["criteria"]))}
    return {
        "type": "score",
        "score": round(sum(index * p for index, p in enumerate(levels.values())), 4),
        "confidence": round(max(levels.values()), 4),
        "legend": {str(index): level for index, level in enumerate(question["criteria"])},
        "probabilities": {level: round(p, 4) for level, p in levels.items()},
    }


def _check(request: Mapping[str, Any]) -> None:
    if not isinstance(request.get("model"), str) or "state" not in request:
        raise ValueError("model and state are required")
    questions = request.get("questions")
    if not isinstance(questions, Mapping) or not questions:
        raise ValueError("at least one question is required")
    for question_id, question in questions.items():
        kind = question.get("type")
        if kind not in TYPE_CODES:
            raise ValueError(_TYPE_ERROR.format(question_id))
        if kind != "noul" and not question.get("criteria"):
            raise ValueError(f"{question_id}: criteria must not be empty")


def _question(question_id: str, question: Mapping[str, Any]) -> Question:
    kind, instructions = question.get("type"), question.get("instructions")
    criteria = question.get("criteria")
    try:
        if kind == "noul":
            return Noul(instructions, criteria or None)
        if kind == "choice":
            return Choice(instructions, {str(option): text for option, text in (criteria or {}).items()})
        if kind == "score":
            return Score(instructions, list(criteria or ()))
    except DicastError as error:
        raise ValueError(f"{question_id}: {error}") from None
    raise ValueError(_TYPE_ERROR.format(question_id))


def _encoding(record: EncodedRecord) -> ClefEncoding:
    """The record as Dicast's batching sees it."""
    media, offset = None, 0
    if record.media:
        offset = record.media["token_offset"]
        kinds = record.media["mm_token_type_ids"]
        tensors = {name: record.media[name] for name in MEDIA_BATCH_KEYS if name in record.media}
        media = MediaEncoding(record.input_ids[offset : offset + len(kinds)], kinds, tensors)
    questions = tuple(
        QuestionSpans(q.question_id, _TYPE_NAMES[q.question_type], q.option_ids, q.question_span, q.option_spans)  # type: ignore[arg-type]
        for q in record.questions
    )
    return ClefEncoding(np.asarray(record.input_ids, np.int64), questions, 0, offset, 0, 0, media)


def _media_dict(encoding: ClefEncoding) -> dict[str, Any] | None:
    if encoding.media is None:
        return None
    types = list(encoding.media.token_types)
    return {**encoding.media.tensors, "mm_token_type_ids": types, "token_offset": encoding.media_offset}


def _split(logits: Tensor, record: EncodedRecord) -> list[Tensor]:
    counts = [len(question.option_ids) for question in record.questions]
    return list(torch.split(logits[: sum(counts)], counts))


_ENCODERS: weakref.WeakKeyDictionary[Any, ClefEncoder] = weakref.WeakKeyDictionary()


def _encoder(tokenizer: Any) -> ClefEncoder:
    """One encoder per tokenizer, so that its piece cache lives on between calls."""
    encoder = _ENCODERS.get(tokenizer)
    if encoder is None:
        encoder = ClefEncoder(getattr(tokenizer, "backend_tokenizer", tokenizer))
        _ENCODERS[tokenizer] = encoder
    return encoder
