"""The encoder: equal to the reference implementation, and blind to padding and to company."""

from __future__ import annotations

import pytest
import torch

from dicast.models.bert import BertConfig, BertEncoder, from_huggingface_names

CONFIG = BertConfig(vocab_size=50, hidden_size=16, layers=2, heads=2, intermediate_size=32, positions=40)


@pytest.fixture
def encoder() -> BertEncoder:
    torch.manual_seed(0)
    return BertEncoder(CONFIG).eval()


def test_states_equal_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=40,
    )  # fmt: skip
    reference = transformers.BertModel(config, add_pooling_layer=False).eval()
    ours = BertEncoder(BertConfig.from_huggingface(config.to_dict())).eval()
    ours.load_state_dict(from_huggingface_names(reference.state_dict()))
    ids = torch.randint(0, 50, (3, 9))
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, 5:] = False
    with torch.no_grad():
        expected = reference(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        torch.testing.assert_close(ours(ids, mask)[mask], expected[mask], atol=1e-6, rtol=1e-5)


def test_a_segment_alone_has_the_states_it_has_in_a_padded_batch(encoder: BertEncoder) -> None:
    ids = torch.randint(0, 50, (4, 12))
    mask = torch.arange(12) < torch.tensor([[12], [3], [1], [8]])
    with torch.no_grad():
        together = encoder(ids, mask)
        for row, length in enumerate((12, 3, 1, 8)):
            alone = encoder(ids[row : row + 1, :length], mask[row : row + 1, :length])[0]
            torch.testing.assert_close(together[row, :length], alone, atol=1e-6, rtol=0)


def test_freezing_leaves_only_upper_layers_to_learn(encoder: BertEncoder) -> None:
    encoder.freeze(1)
    learning = {name.split(".")[1] for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert learning == {"1"}


def test_other_activations_are_refused() -> None:
    with pytest.raises(ValueError, match="GELU"):
        BertConfig.from_huggingface({"hidden_act": "relu"})
