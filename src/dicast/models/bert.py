"""A BERT-class encoder in plain torch: token ids of separate segments in, final hidden states out.

Knows nothing about records, questions or heads, and does not import transformers. Post-norm layers, learned absolute
positions that restart with every segment, one token type. A batch is a list of padded buckets of segments of similar
length; a segment attends only to itself, so how segments are grouped cannot change their states beyond rounding.

Shapes: n segments of at most L tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ArrayT = TypeVar("ArrayT")


@dataclass(frozen=True, slots=True)
class BertConfig:
    """Sizes of the encoder."""

    vocab_size: int = 30522
    hidden_size: int = 384
    layers: int = 12
    heads: int = 12
    intermediate_size: int = 1536
    positions: int = 512
    layer_norm_eps: float = 1e-12

    @classmethod
    def from_huggingface(cls, config: Mapping[str, Any]) -> BertConfig:
        """Sizes from a ``config.json`` of ``model_type`` bert.

        Raises:
            ValueError: the activation is not GELU or the positions are not absolute.
        """
        if (
            config.get("hidden_act", "gelu") != "gelu"
            or config.get("position_embedding_type", "absolute") != "absolute"
        ):
            raise ValueError("only BERT encoders with GELU and absolute positions are supported")
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            intermediate_size=config["intermediate_size"],
            positions=config["max_position_embeddings"],
            layer_norm_eps=config["layer_norm_eps"],
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``bert.json``."""
        return asdict(self)


class BertLayer(nn.Module):
    """Self-attention and feed-forward, each followed by a residual sum and a layer norm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.up = nn.Linear(width, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, width)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [n, L, H]; bias [n, 1, 1, L] added to attention scores, or None without padding -> [n, L, H]."""
        n, length, width = x.shape
        shape = (n, length, self.heads, width // self.heads)
        query, key, value = (
            projection(x).view(shape).transpose(1, 2) for projection in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = self.attention_norm(x + self.output(mixed.transpose(1, 2).reshape(n, length, width)))
        out: Tensor = self.norm(x + self.down(F.gelu(self.up(x))))
        return out


class BertEncoder(nn.Module):
    """Embeddings and layers. ``forward(ids [n, L], mask [n, L]) -> hidden [n, L, H]``; padded rows hold no meaning."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.positions, config.hidden_size)
        self.token_type = nn.Parameter(torch.zeros(config.hidden_size))
        self.embedding_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList(BertLayer(config) for _ in range(config.layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """ids [n, L] int64, mask [n, L] bool (True for tokens) -> hidden states [n, L, H]."""
        x: Tensor = self.word(ids) + self.position.weight[: ids.shape[1]] + self.token_type
        x = self.embedding_norm(x)
        bias = torch.zeros(mask.shape, dtype=x.dtype, device=x.device).masked_fill(~mask, -1e9)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, bias)
        return x

    def freeze(self, layers: int) -> None:
        """Stop gradients into the embeddings and the first `layers` layers."""
        for parameter in (*self.word.parameters(), *self.position.parameters(), self.token_type):
            parameter.requires_grad_(False)
        for module in (self.embedding_norm, *self.layers[:layers]):
            module.requires_grad_(layers == 0 and module is self.embedding_norm)


_LAYER_NAMES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm",
}


def from_huggingface_names(weights: Mapping[str, ArrayT]) -> dict[str, ArrayT]:
    """Rename the tensors of a Hugging Face ``BertModel`` (a prefix ``bert.`` is accepted) to those of this module.

    The token type table becomes its first row, the only one used; the pooler is left out.
    """
    renamed: dict[str, Any] = {}
    for full, value in weights.items():
        name = full.removeprefix("bert.")
        if name.startswith("encoder.layer."):
            number, _, rest = name.removeprefix("encoder.layer.").partition(".")
            module, _, kind = rest.rpartition(".")
            renamed[f"layers.{number}.{_LAYER_NAMES[module]}.{kind}"] = value
        elif name == "embeddings.word_embeddings.weight":
            renamed["word.weight"] = value
        elif name == "embeddings.position_embeddings.weight":
            renamed["position.weight"] = value
        elif name == "embeddings.token_type_embeddings.weight":
            renamed["token_type"] = value[0]  # type: ignore[index]
        elif name.startswith("embeddings.LayerNorm."):
            renamed[name.replace("embeddings.LayerNorm", "embedding_norm")] = value
    return renamed
