"""A tiny segment model for tests: random weights, a WordPiece tokenizer of letters and a few words; built at once."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from dicast.models.bert import BertConfig
from dicast.models.head import HeadConfig
from dicast.models.segmented import SegmentModel, SegmentNet
from dicast.segments import SegmentEncoder

WORDS = ("card", "lost", "pay", "money", "the", "is", "it", "urgent", "yes", "no", "which", "team", "billing", "tool")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def tiny_tokenizer() -> Tokenizer:
    """WordPiece over letters, digits, punctuation and a few words, lower-cased as BERT's."""
    symbols = [*string.ascii_lowercase, *string.digits]
    pieces = [*SPECIAL, *WORDS, *symbols, *(f"##{symbol}" for symbol in symbols), *string.punctuation]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def tiny_encoder() -> SegmentEncoder:
    """A segment encoder on the tiny tokenizer."""
    return SegmentEncoder(tiny_tokenizer())


def tiny_config() -> BertConfig:
    """Two layers, 16 wide."""
    return BertConfig(
        vocab_size=tiny_tokenizer().get_vocab_size(),
        hidden_size=16,
        layers=2,
        heads=2,
        intermediate_size=32,
        positions=512,
    )


def tiny_model(seed: int = 0) -> SegmentModel:
    """A segment model whose every parameter is random, so that every part counts."""
    torch.manual_seed(seed)
    head = HeadConfig(hidden_size=16, width=16, routing_layers=1, layers=1, heads=2, feedforward=32)
    net = SegmentNet(tiny_config(), head)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if not name.endswith("norm.weight"):
                parameter.add_(0.1 * torch.randn_like(parameter))
        net.head.prior_logit_scale.fill_(-30.0)
    return SegmentModel(net.eval(), tiny_encoder(), name="tiny")


def wide_model() -> SegmentModel:
    """One layer, 64 wide: its matrices are large enough to be written as int8."""
    torch.manual_seed(3)
    bert = BertConfig(
        vocab_size=tiny_tokenizer().get_vocab_size(),
        hidden_size=64,
        layers=1,
        heads=2,
        intermediate_size=96,
        positions=512,
    )
    head = HeadConfig(hidden_size=64, width=64, routing_layers=1, layers=1, heads=2, feedforward=96)
    return SegmentModel(SegmentNet(bert, head).eval(), tiny_encoder(), name="wide")


def save_tokenizer(folder: Path) -> Path:
    """The tiny tokenizer as a file."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
