"""The embedded model in torch: a BERT encoder over separate segments, and the joint schema head over their rows.

All crossing between state, instructions and options happens in the head: options read every memory row (evidence
layers), questions see each other (field layers), and the prior compares pooled segments by cosine. Knows nothing of
JSON, tokenizers or probabilities.

    logit = prior(cosines of [CLS] vectors) + sigmoid(gate) * joint(head)

The joint part starts at about zero, so an untrained head gives the answers of the encoder's own cosine.

Shapes: B records, Q questions, O options, N evidence windows, S memory rows, H encoder width, W head width.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from dicast.errors import CheckpointError
from dicast.models.base import DEFAULT_OPTIONS, EncodeOptions, Logits, ModelInfo
from dicast.models.bert import BertConfig, BertEncoder
from dicast.models.head import AttentionForm, HeadConfig, HeadInputs, JointSchemaHead
from dicast.models.onnx_weights import read_weights
from dicast.models.segment_batch import Bucket, SegmentBatch, buckets_of, memory_index, plan_batch, split_logits
from dicast.records import Record
from dicast.segments import PARTS, SegmentEncoder, SegmentEncoding

FORMAT = "segments"
UNIT = 20.0
"""Scale of the prior's learned factors: cosines of this encoder differ by a few hundredths between options."""
HINTS = 3
HINT_UNIT = 5.0
"""By what the prior's numbers are divided before the head sees them."""
SMALL_START = 0.2
"""By what the evidence layers' outputs are multiplied at the start, so that they cannot drown the options they join."""


class PriorInputs(NamedTuple):
    """[CLS] vectors that the prior compares.

    Attributes:
        label: ``[B, O, H]`` option alone.
        hypothesis: ``[B, O, H]`` instruction and option.
        question: ``[B, Q, H]`` instruction.
        window: ``[B, N, H]`` evidence windows.
        window_mask: ``[B, N]`` bool.
        window_owner: ``[B, N]`` int64: the only question that may use a window, or -1.
        types: ``[B, Q]`` int64.
        owner: ``[B, O]`` int64.
        option_mask: ``[B, O]`` bool.
        peer: ``[B, O]`` int64: what options of the same text in like questions share, or -1.
    """

    label: Tensor
    hypothesis: Tensor
    question: Tensor
    window: Tensor
    window_mask: Tensor
    window_owner: Tensor
    types: Tensor
    owner: Tensor
    option_mask: Tensor
    peer: Tensor


class PriorLogits(NamedTuple):
    """What the prior says of each option, all ``[B, O]``.

    Attributes:
        own: logits from the option's own cosines.
        odds: log-odds of the option within its question, from `own`.
        rivals: log of the summed odds of its peers; 0 without peers.
        logits: the prior: `own`, less the learned share of `rivals`.
    """

    own: Tensor
    odds: Tensor
    rivals: Tensor
    logits: Tensor


class SegmentPrior(nn.Module):
    """Cosines between options and evidence, scaled per question type.

    For option o and window n: c = cos(o, n). A softmax over windows, sharpened by a learned factor, pools them, so that
    one fitting window in a long state counts. Without evidence the option is compared with the instruction.

    Where several questions ask the same of different things (which tool to call, one question per tool), an option's
    peers are its rivals. If exactly one of them could hold, its log-odds would be z_o - log sum_p exp z_p over the
    peers p; how much of that subtraction an option takes part in is a linear function of its label (a "yes" may, a
    "no" may not). It starts at zero.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rivalry = nn.Parameter(torch.zeros(width))
        self.label_scale = nn.Parameter(torch.tensor([0.0, 0.8, 0.5]))  # noul, choice, score
        self.hypothesis_scale = nn.Parameter(torch.tensor([1.0, 0.5, 0.5]))
        self.question_scale = nn.Parameter(torch.zeros(3))
        self.sharpness = nn.Parameter(torch.tensor(0.5))

    def forward(self, inputs: PriorInputs) -> PriorLogits:
        """Prior logits ``[B, O]`` and what they are made of."""
        own = self._own(inputs)
        odds = _log_odds(own, inputs.owner, inputs.option_mask, inputs.types.shape[1])
        rivals = _rivals(odds, inputs.peer, inputs.owner)
        share = UNIT * torch.matmul(F.normalize(inputs.label, dim=-1), self.rivalry)
        return PriorLogits(own, odds, rivals, own - share * rivals)

    def _own(self, inputs: PriorInputs) -> Tensor:
        kind = inputs.types.gather(1, inputs.owner)
        label = F.normalize(inputs.label, dim=-1)
        hypothesis = F.normalize(inputs.hypothesis, dim=-1)
        window = F.normalize(inputs.window, dim=-1)
        question = F.normalize(inputs.question, dim=-1)
        asked = question.gather(1, inputs.owner[..., None].expand(-1, -1, question.shape[-1]))
        owners = inputs.window_owner[:, None]
        usable = inputs.window_mask[:, None] & ((owners < 0) | (owners == inputs.owner[..., None]))  # [B, O, N]
        seen = usable.any(dim=-1)
        on_label = torch.where(seen, self._pooled(label, window, usable), (label * asked).sum(-1))
        on_hypothesis = torch.where(seen, self._pooled(hypothesis, window, usable), (hypothesis * asked).sum(-1))
        on_question = torch.where(seen, (label * asked).sum(-1), torch.zeros_like(on_label))
        return UNIT * (
            self.label_scale[kind] * on_label
            + self.hypothesis_scale[kind] * on_hypothesis
            + self.question_scale[kind] * on_question
        )

    def _pooled(self, option: Tensor, window: Tensor, usable: Tensor) -> Tensor:
        cosines = torch.matmul(option, window.transpose(1, 2))  # [B, O, N]
        weights = (UNIT * self.sharpness * cosines).masked_fill(~usable, -1e9).softmax(dim=-1)
        return (weights * cosines).sum(dim=-1)


def _log_odds(logits: Tensor, owner: Tensor, mask: Tensor, questions: int) -> Tensor:
    """log p / (1 - p) of each option within its question, at most about 14 either way: ``[B, O]``."""
    asked = torch.arange(questions, device=owner.device)
    member = (owner[:, None, :] == asked[None, :, None]) & mask[:, None, :]  # [B, Q, O]
    total = logits[:, None, :].masked_fill(~member, -1e9).logsumexp(dim=-1)
    logp = (logits - total.gather(1, owner)).clamp(min=-14.0, max=-1e-6)
    return logp - torch.log(1.0 - logp.exp())


def _rivals(odds: Tensor, peer: Tensor, owner: Tensor) -> Tensor:
    """log sum of the odds of each option's peers in other questions; 0 where it has none: ``[B, O]``."""
    rival = (peer[:, :, None] == peer[:, None, :]) & (peer >= 0)[:, None, :]
    rival = rival & (owner[:, :, None] != owner[:, None, :])  # [B, O, O]
    total = odds[:, None, :].expand(-1, odds.shape[1], -1).masked_fill(~rival, -1e9).logsumexp(dim=-1)
    return torch.where(rival.any(dim=-1), total, torch.zeros_like(total))


class EncodedSegments(NamedTuple):
    """What the head needs of segments. Rows of all buckets stand one after the other.

    Attributes:
        memory: ``[rows, W]`` memory rows of every token (padding included).
        cls: ``[segments, H]`` raw [CLS] vectors.
        mean: ``[segments, H]`` mean of the normed rows over each segment's span.
        cls_normed: ``[segments, H]`` normed [CLS] rows.
    """

    memory: Tensor
    cls: Tensor
    mean: Tensor
    cls_normed: Tensor


class SegmentNet(nn.Module):
    """Encoder, head and prior."""

    def __init__(self, bert: BertConfig, head: HeadConfig) -> None:
        super().__init__()
        self.bert = BertEncoder(bert)
        self.head = JointSchemaHead(
            head.hidden_size, head.width, head.routing_layers, head.layers, head.heads, head.feedforward, head.dropout
        )
        self.prior = SegmentPrior(head.hidden_size)
        self.hint = nn.Linear(HINTS, head.width, bias=False)
        self.part_embedding = nn.Parameter(torch.zeros(len(PARTS), head.width))
        self.start_at_prior()

    def start_at_prior(self) -> None:
        """Make the joint part (nearly) zero and switch off the head's own prior, which `prior` replaces."""
        last = self.head.residual_scorer[-1]
        nn.init.zeros_(last.weight)  # type: ignore[arg-type]
        nn.init.zeros_(last.bias)  # type: ignore[arg-type]
        with torch.no_grad():
            self.head.joint_logit_scale.fill_(-2.0)
            self.head.residual_gate.fill_(2.0)
            self.head.prior_logit_scale.fill_(-30.0)
            for layer in self.head.evidence_layers:
                layer.attention.out_proj.weight.mul_(SMALL_START)  # type: ignore[union-attr,operator]
        self.head.prior_logit_scale.requires_grad_(False)

    def encode_bucket(self, ids: Tensor, mask: Tensor, span: Tensor) -> EncodedSegments:
        """One bucket: ids, mask, span ``[n, L]`` -> memory ``[n, L, W]`` and pooled vectors ``[n, H]``."""
        hidden = self.bert(ids, mask)
        normed, memory = self.head.read(hidden)
        weights = span.to(normed.dtype)
        mean = torch.matmul(weights[:, None], normed).squeeze(1) / weights.sum(dim=1, keepdim=True)
        return EncodedSegments(memory, hidden[:, 0], mean, normed[:, 0])

    def encode_segments(self, buckets: Sequence[Bucket], count: int) -> tuple[EncodedSegments, list[int]]:
        """All segments of a batch and the row at which each begins in the memory."""
        device = self.part_embedding.device
        parts: list[EncodedSegments] = []
        order: list[int] = []
        offsets, row = [0] * count, 0
        for bucket in buckets:
            arrays = (torch.from_numpy(array).to(device) for array in (bucket.ids, bucket.mask, bucket.span))
            encoded = self.encode_bucket(*arrays)
            parts.append(encoded._replace(memory=encoded.memory.flatten(0, 1)))
            for number in bucket.members:
                offsets[number] = row
                row += bucket.ids.shape[1]
            order.extend(bucket.members)
        back = torch.from_numpy(np.argsort(np.asarray(order, np.int64))).to(device)
        merged = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
        return EncodedSegments(merged[0], *(tensor[back] for tensor in merged[1:])), offsets

    def decide(self, head: HeadInputs, prior: PriorInputs, form: AttentionForm = "auto") -> Tensor:
        """Logits ``[B, O]``. The head is told what the prior says; its gradient does not go back that way."""
        said: PriorLogits = self.prior(prior)
        seen = torch.stack((said.own, said.odds, said.rivals), dim=-1).detach() / HINT_UNIT
        joint: Tensor = self.head(head._replace(hint=self.hint(seen)), form)
        return said.logits + joint

    def forward(self, batch: SegmentBatch) -> Tensor:
        """Logits ``[B, O]`` of a batch."""
        device = self.part_embedding.device
        encoded, offsets = self.encode_segments(buckets_of(batch.segments), len(batch.segments))
        index, memory_mask, parts = (torch.from_numpy(a).to(device) for a in memory_index(batch, offsets))
        at = {
            name: torch.from_numpy(getattr(batch, name)).to(device)
            for name in (
                "question", "question_mask", "types", "label", "hypothesis", "option_mask", "owner",
                "window", "window_mask", "window_owner", "peer",
            )
        }  # fmt: skip
        head = HeadInputs(
            memory=encoded.memory[index] + self.part_embedding[parts],
            memory_mask=memory_mask,
            question=encoded.mean[at["question"]],
            question_mask=at["question_mask"],
            types=at["types"],
            option=encoded.mean[at["hypothesis"]],
            lexical=encoded.cls[at["hypothesis"]],
            option_mask=at["option_mask"],
            owner=at["owner"],
            summary=summary_of(encoded.cls_normed[at["window"]], at["window_mask"]),
        )
        prior = PriorInputs(
            label=encoded.cls[at["label"]],
            hypothesis=encoded.cls[at["hypothesis"]],
            question=encoded.cls[at["question"]],
            window=encoded.cls[at["window"]],
            window_mask=at["window_mask"],
            window_owner=at["window_owner"],
            types=at["types"],
            owner=at["owner"],
            option_mask=at["option_mask"],
            peer=at["peer"],
        )
        return self.decide(head, prior)


def summary_of(windows: Tensor, mask: Tensor) -> Tensor:
    """Mean of the evidence windows' normed [CLS] rows ``[B, N, H]``; zero without evidence: ``[B, H]``."""
    weights = mask.to(windows.dtype)
    return torch.matmul(weights[:, None], windows).squeeze(1) / weights.sum(dim=1, keepdim=True).clamp(min=1.0)


class SegmentModel:
    """The segment net with its tokenizer: a `Model` in torch. The light runtime is `dicast.models.onnx`."""

    def __init__(self, net: SegmentNet, encoder: SegmentEncoder, *, name: str = "dicast-embedded") -> None:
        self.net = net
        self.encoder = encoder
        self.name = name
        self.extra: dict[str, Any] = {}

    @property
    def info(self) -> ModelInfo:
        """What this model is."""
        parts = {"backbone": self.net.bert, "head": nn.ModuleList([self.net.head, self.net.prior])}
        counts = {part: sum(p.numel() for p in module.parameters()) for part, module in parts.items()}
        parameter = self.net.part_embedding
        return ModelInfo(
            name=self.name,
            architecture="segments (bert + joint schema head)",
            runtime="torch",
            parameters=counts,
            dtype=str(parameter.dtype).removeprefix("torch."),
            device=str(parameter.device),
            max_tokens=self.encoder.max_tokens,
        )

    def encode(self, record: Record, options: EncodeOptions = DEFAULT_OPTIONS) -> SegmentEncoding:
        """Encode one record; see `dicast.segments`."""
        return self.encoder.encode(record, options)

    def score(self, encodings: Sequence[SegmentEncoding]) -> list[Logits]:
        """Logits per record and question, in request order of the options."""
        if not encodings:
            return []
        self.net.eval()
        with torch.inference_mode():
            logits = self.net(plan_batch(encodings)).float().cpu().numpy()
        return split_logits(encodings, logits)

    def save(self, folder: Path, tokenizer: Path | None = None) -> None:
        """Write ``model.safetensors``, ``dicast.json`` and ``tokenizer.json`` into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.detach().cpu().contiguous() for name, value in self.net.state_dict().items()}
        save_file(weights, folder / "model.safetensors")
        config = {
            "format": FORMAT,
            "name": self.name,
            "bert": self.net.bert.config.to_dict(),
            "head": {field: getattr(self.net.head.config, field) for field in HeadConfig.__dataclass_fields__},
            **self.extra,
        }
        (folder / "dicast.json").write_text(json.dumps(config, indent=2) + "\n")
        if tokenizer is not None:
            (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())

    @classmethod
    def load(cls, folder: Path, *, device: str = "cpu") -> SegmentModel:
        """A model from a folder written by :meth:`save`, or by `export_onnx` (int8 weights are multiplied out).

        Raises:
            CheckpointError: names or shapes do not fit exactly.
        """
        config = json.loads((folder / "dicast.json").read_text())
        net = SegmentNet(BertConfig(**config["bert"]), HeadConfig(**config["head"]))
        whole = folder / "model.safetensors"
        try:
            net.load_state_dict(load_file(whole) if whole.is_file() else read_weights(folder), strict=True)
        except RuntimeError as error:
            raise CheckpointError(f"the weights in {folder} do not fit: {error}") from None
        model = cls(net.to(device).eval(), SegmentEncoder.from_file(folder / "tokenizer.json"), name=config["name"])
        known = {"format", "name", "bert", "head", "runtime", "parameters", "weights", "opset"}
        model.extra = {key: value for key, value in config.items() if key not in known}
        return model

    @classmethod
    def warm_start(cls, folder: Path, *, head: HeadConfig | None = None, seed: int = 0) -> SegmentModel:
        """An untrained head on a pretrained encoder: ``bert.safetensors``, ``bert.json``, ``tokenizer.json``."""
        torch.manual_seed(seed)
        bert = BertConfig(**json.loads((folder / "bert.json").read_text()))
        head = head or HeadConfig(
            hidden_size=bert.hidden_size, width=256, routing_layers=2, layers=1, heads=8, feedforward=512, dropout=0.1
        )
        net = SegmentNet(bert, head)
        net.bert.load_state_dict(load_file(folder / "bert.safetensors"), strict=True)
        return cls(net.eval(), SegmentEncoder.from_file(folder / "tokenizer.json"))
