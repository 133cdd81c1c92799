"""Writes logits-float64.json: what the reference module gives when every step of its decoder is computed in float64.

transformers rounds some steps to float32 whatever the dtype (norms, the gated delta rule), and on this ill-conditioned
checkpoint such rounding moves logits by 1e-5. Here those steps are compiled again with float64 in its place, so that
any exact implementation must agree to the last digits. Rotary angles stay as transformers makes them.

    python -m tests.golden.float64
"""

from __future__ import annotations

import inspect
import json
from importlib.metadata import version
from typing import Any

import torch

ROUNDING = (
    *("Qwen3_5RMSNorm", "Qwen3_5RMSNormGated", "Qwen3_5GatedDeltaNet"),
    *("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"),
)
"""What rounds to float32 in transformers' decoder."""


def make_exact() -> None:
    """Compile those parts of transformers' module again, in place, with float64."""
    import transformers.models.qwen3_5.modeling_qwen3_5 as qwen

    for name in ROUNDING:
        source = inspect.getsource(inspect.unwrap(getattr(qwen, name)))
        exact = source.replace("torch.float32", "torch.float64").replace(".float()", ".double()")
        if exact == source:
            raise RuntimeError(f"{name} of this transformers version rounds nothing: look again")
        exec(compile(exact, f"<{name} in float64>", "exec"), vars(qwen))


def reference_logits() -> dict[str, list[list[float]]]:
    """Case name -> per question, per option, the reference's logit."""
    from clef_finetune._vendor import joint_schema_model as reference
    from tests.golden_cases import CASES, RELEASE, media_of

    model, processor = reference.load_release_model(RELEASE, device="cpu", dtype=torch.float64)
    pad = processor.tokenizer.pad_token_id
    logits = {}
    for case in CASES:
        record: dict[str, Any] = {**case["request"], **media_of(case)}
        encoded = reference.encode_record(
            processor.tokenizer, record, max_length=case["max_length"], processor=processor
        )
        with torch.inference_mode():
            found = model(reference.collate_records([encoded], pad, torch.device("cpu")))[0]
        logits[case["name"]] = [[float(value) for value in question] for question in found]
    return logits


if __name__ == "__main__":
    from tests.golden_cases import FOLDER

    make_exact()
    made_with = (
        f"reference module (SHA-256 0e304cf7...), torch {version('torch').split('+')[0]} CPU, "
        f"transformers {version('transformers')}, every step of the decoder in float64 (tests/golden/float64.py)"
    )
    content = json.dumps({"made_with": made_with, "logits": reference_logits()}, separators=(",", ":"))
    (FOLDER / "logits-float64.json").write_text(content + "\n", encoding="utf-8")
