"""Where and in which dtype a torch model runs: the one place that decides both.

Rules for `dtype="auto"`: bfloat16 on CUDA and MPS; on a CPU float32, unless the processor multiplies bfloat16 itself
(AMX or AVX-512-BF16), where bfloat16 is as quick and half the size. float16 is never used on a CPU: it is slow there
and overflows in this model family.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from dicast.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(device: str) -> torch.device:
    """The device for a name; ``auto`` takes CUDA, then MPS, then the CPU.

    Raises:
        ConfigError: the name is unknown or no such device is present.
    """
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"no device {device!r} on this machine ({reason})", field="device", seen=device) from None
    return chosen


def resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """The dtype of the backbone's weights for a name on a device.

    Raises:
        ConfigError: the name is unknown, or float16 is asked for on a CPU.
    """
    if dtype == "auto":
        if device.type != "cpu" or cpu_multiplies_bfloat16():
            return torch.bfloat16
        return torch.float32
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be auto, {', '.join(DTYPES)}, not {dtype!r}", field="dtype", seen=dtype)
    if dtype == "float16" and device.type == "cpu":
        raise ConfigError("float16 is not used on a CPU; ask for float32 or bfloat16", field="dtype", seen=dtype)
    return DTYPES[dtype]


def cpu_multiplies_bfloat16() -> bool:
    """Whether this processor has bfloat16 matrix instructions (AMX tiles or AVX-512-BF16)."""
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)


def kernels(device: torch.device, attention: str, *, own_delta: bool) -> dict[str, str | int]:
    """Which kernels a Qwen3.5 backbone runs on a device, and with how many threads: what `dicast info` shows.

    transformers takes the fused linear-attention and convolution kernels wherever their packages can be imported and
    the device is a GPU; everywhere else the Gated DeltaNet layers run :mod:`dicast.models.delta`.

    Args:
        device: where the model runs.
        attention: attention implementation of the backbone, e.g. ``sdpa``.
        own_delta: whether the layers are of a make that `dicast.models.delta` knows.
    """
    plain = "dicast (torch)" if own_delta else "transformers (torch)"
    fused = device.type == "cuda" and find_spec("fla") is not None
    convolution = "causal-conv1d" if find_spec("causal_conv1d") else "transformers (torch)"
    return {
        "attention": attention,
        "gated delta rule": "flash-linear-attention" if fused else plain,
        "causal convolution": convolution if fused else plain,
        "threads": torch.get_num_threads(),
    }
