"""Checkpoint folders: find or fetch one, tell its kind, read it, write it.

Kinds of folder:

* *Clef release layout*: `config.json`, `model*.safetensors`, `joint_head_config.json`, `joint_head.safetensors`,
  tokenizer and processor files. Runs on torch.
* *Segments*: `dicast.json` with ``"format": "segments"``, ONNX graphs and a tokenizer. Runs on onnxruntime.

Only safetensors and ONNX are ever read: no pickle, no code from a checkpoint. Nothing here imports torch at start.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from dicast.encoding import DEFAULT_MAX_LENGTH, ClefEncoder, load_tokenizer
from dicast.errors import CheckpointError, ConfigError, DicastError, MissingDependencyError, ModelNotFoundError
from dicast.models.base import Model, ModelInfo

if TYPE_CHECKING:
    from dicast.models.clef import ClefModel

Kind: TypeAlias = Literal["clef", "segments"]

EMBEDDED_NAME = "dicast-embedded"
EMBEDDED_FOLDER = Path(__file__).parent / "models" / "embedded"
HEAD_CONFIG = "joint_head_config.json"
HEAD_WEIGHTS = "joint_head.safetensors"
HEAD_KEYS = {"hidden_size", "width", "routing_layers", "layers", "heads", "feedforward", "dropout"}
FETCHED = ["*.json", "*.safetensors", "*.onnx", "*.jinja", "*.txt", "README.md", "LICENSE*", "NOTICE*"]
"""What is fetched from a hub repository: never code, never pickles."""
COPIED = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "generation_config.json",
    "LICENSE",
]
"""Files that saving copies unchanged from the folder a model came from."""


def load_model(
    name: str | Path | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    vision: bool = True,
    max_length: int = DEFAULT_MAX_LENGTH,
    head_dtype: str = "float32",
    threads: int | None = None,
    reuse_bytes: int | None = None,
    quantize: Literal["int8", "int4"] | None = None,
    cuda_graphs: bool = False,
    compiled: bool = False,
    **backbone: Any,
) -> Model:
    """Load a model from the package, a folder or the Hugging Face hub.

    Args:
        name: None or ``"dicast-embedded"`` for the embedded model; a folder; or a hub name such as
            ``Cloudflare/clef-flash``, optionally with ``@revision``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        dtype: dtype of the backbone: ``auto``, ``float32``, ``bfloat16``, ``float16``
            (rules in `dicast.models.devices`).
        vision: whether to load the vision tower of a checkpoint that has one.
        max_length: most tokens of one record, for Clef checkpoints.
        head_dtype: dtype of the joint schema head of a Clef checkpoint.
        threads: threads of the onnx runtime; None chooses.
        reuse_bytes: most bytes that a Clef model keeps of states it has read, so that further questions about them are
            quick; 0 keeps nothing between calls, None chooses 1 GiB on a CPU and 4 GiB elsewhere.
        quantize: weight-only quantisation of a Clef backbone (see :mod:`dicast.models.quantize`).
        cuda_graphs: read single short records through CUDA graphs (see :mod:`dicast.models.graphs`).
        compiled: compile the decoder layers with `torch.compile`; the first records of a new shape then take minutes.
        **backbone: passed on to transformers' `from_pretrained` for Clef checkpoints.

    Raises:
        ModelNotFoundError: no such folder or hub repository.
        CheckpointError: the folder is incomplete, corrupt or of the wrong kind.
        MissingDependencyError: the kind needs an extra that is not installed.
    """
    folder, shown, revision = resolve(name)
    if kind_of(folder) == "segments":
        from dicast.models.onnx import load_segments

        with _content_of(folder):
            return load_segments(folder, name=shown, device=device, dtype=dtype, threads=threads)
    return load_clef(
        folder,
        name=shown,
        revision=revision,
        device=device,
        dtype=dtype,
        vision=vision,
        max_length=max_length,
        head_dtype=head_dtype,
        reuse=True,
        reuse_bytes=reuse_bytes,
        quantize=quantize,
        cuda_graphs=cuda_graphs,
        compiled=compiled,
        **backbone,
    )


def resolve(name: str | Path | None) -> tuple[Path, str, str]:
    """The folder, shown name and revision of a model name; fetches from the hub where needed.

    Raises:
        ModelNotFoundError: no such folder or hub repository.
    """
    if name is None or str(name) in (EMBEDDED_NAME, "embedded"):
        return EMBEDDED_FOLDER, EMBEDDED_NAME, ""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder, folder.resolve().name, ""
    text = str(name)
    if isinstance(name, Path) or folder.is_absolute() or text.startswith(".") or text.count("/") != 1:
        raise ModelNotFoundError(
            f"no model {text!r}: neither a folder nor a hub name such as Cloudflare/clef-flash",
            field="model",
            seen=text,
        )
    repository, _, revision = text.partition("@")
    return fetch(repository, revision or None), repository, revision


def fetch(repository: str, revision: str | None = None) -> Path:
    """Fetch a hub repository, resuming what was begun and showing a progress bar; honours ``HF_HUB_OFFLINE``.

    Raises:
        ModelNotFoundError: no such repository or revision, or the hub can't be reached and nothing is cached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    shown = f"{repository}@{revision}" if revision else repository
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=FETCHED))
    except HFValidationError as error:
        raise ModelNotFoundError(f"{shown!r} is not a hub name: {error}", field="model", seen=shown) from None
    except LocalEntryNotFoundError as error:
        raise ModelNotFoundError(
            f"{shown} is not in the local cache and the hub can't be reached", field="model", seen=shown
        ) from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFoundError(f"can't fetch {shown} from the hub: {reason}", field="model", seen=shown) from error


@contextmanager
def _content_of(folder: Path) -> Iterator[None]:
    """What a checkpoint's files lack or hold wrongly, as a CheckpointError."""
    try:
        yield
    except DicastError:
        raise
    except KeyError as error:
        raise CheckpointError(f"{folder} cannot be loaded: its files lack {error}") from error
    except Exception as error:
        # tokenizers reports a bad tokenizer.json as a bare Exception; a subclass may be a fault of ours
        if type(error) is not Exception and not isinstance(error, (TypeError, ValueError)):
            raise
        raise CheckpointError(f"{folder} cannot be loaded: {error}") from error


def kind_of(folder: Path) -> Kind:
    """Which kind of checkpoint a folder holds.

    Raises:
        CheckpointError: none, or a chat model without a joint schema head.
    """
    if (folder / "dicast.json").exists():
        described = read_json(folder / "dicast.json").get("format")
        if described != "segments":
            raise CheckpointError(f"{folder / 'dicast.json'} names the unknown format {described!r}")
        return "segments"
    if (folder / HEAD_CONFIG).exists() or (folder / HEAD_WEIGHTS).exists():
        return "clef"
    if (folder / "config.json").exists():
        raise CheckpointError(
            f"{folder} has no joint schema head ({HEAD_CONFIG}): this is a chat or base model, not a decision model; "
            "`dicast train` makes a decision model from it"
        )
    raise CheckpointError(f"{folder} is not a checkpoint: it has neither dicast.json nor {HEAD_CONFIG}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a checkpoint.

    Raises:
        CheckpointError: missing, not JSON, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is missing or not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds {type(value).__name__}, not an object")
    return value


def load_clef(
    folder: Path,
    *,
    name: str = "",
    revision: str = "",
    device: str = "auto",
    dtype: str = "auto",
    vision: bool = True,
    max_length: int = DEFAULT_MAX_LENGTH,
    head_dtype: str = "float32",
    reuse: bool = False,
    reuse_bytes: int | None = None,
    quantize: Literal["int8", "int4"] | None = None,
    cuda_graphs: bool = False,
    compiled: bool = False,
    **backbone: Any,
) -> ClefModel:
    """Load a checkpoint in the Clef release layout; see :func:`load_model` for the arguments.

    States are reused only on request, since a model that is being trained must not: `reuse`.
    """
    require_torch()
    from dicast.models.clef import ClefModel, ClefNetwork
    from dicast.models.clef_reuse import reuse_for
    from dicast.models.devices import DTYPES, kernels, resolve_device, resolve_dtype
    from dicast.models.qwen import load_backbone
    from dicast.models.qwen_media import load_media_reader

    if head_dtype not in DTYPES:
        raise ConfigError(f"head_dtype must be one of {', '.join(DTYPES)}, not {head_dtype!r}", field="head_dtype")
    where = resolve_device(device)
    body = load_backbone(folder, device=where, dtype=resolve_dtype(dtype, where), vision=vision, **backbone)
    head = load_head(folder, hidden_size=body.hidden_size).to(where, DTYPES[head_dtype]).eval().requires_grad_(False)
    tokenizer = load_tokenizer(folder)
    media = load_media_reader(folder) if body.has_vision else None
    info = ModelInfo(
        name=name or folder.name,
        architecture=f"clef ({body.text.config.model_type} + joint schema head)",
        runtime="torch",
        parameters={"backbone": _parameters(body), "head": _parameters(head)},
        dtype=str(body.dtype).removeprefix("torch."),
        device=str(where),
        max_tokens=max_length,
        images=body.has_vision,
        videos=body.has_vision,
        revision=revision,
        licence=card_licence(folder),
        details=kernels(where, body.text.config._attn_implementation, own_delta=body.own_delta)
        | ({"weights": quantize} if quantize else {}),
    )
    network = ClefNetwork(body, head)
    _tune(network, quantize=quantize, cuda_graphs=cuda_graphs, compiled=compiled)
    encoder = ClefEncoder(tokenizer, max_length=max_length, media=media)
    return ClefModel(
        network,
        encoder,
        info,
        pad_id=pad_token_id(folder, tokenizer),
        folder=folder,
        reuse=reuse_for(str(where), reuse_bytes) if reuse else None,
    )


def _tune(network: Any, *, quantize: Literal["int8", "int4"] | None, cuda_graphs: bool, compiled: bool) -> None:
    """Apply the options that trade something for speed or memory."""
    from dicast.models.graphs import ShortRecords
    from dicast.models.quantize import quantise

    device = network.backbone.device
    if cuda_graphs and device.type != "cuda":
        raise ConfigError(f"CUDA graphs need a CUDA device, not {device}", field="cuda_graphs", seen=str(device))
    if quantize:
        quantise(network.backbone, quantize)
    if compiled:
        for layer in network.backbone.text.layers:
            layer.compile(dynamic=True)
    if cuda_graphs:
        network.short = ShortRecords(network.backbone)


def load_head(folder: Path, *, hidden_size: int | None = None) -> Any:
    """The joint schema head of a folder, in the dtype in which it is stored.

    Args:
        folder: checkpoint in the release layout.
        hidden_size: width of the backbone; None does not check it.

    Raises:
        CheckpointError: missing or corrupt files, or a head for another backbone width.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from dicast.models.head import head_from_state

    config = read_json(folder / HEAD_CONFIG)
    unknown = sorted(set(config) - HEAD_KEYS)
    missing = sorted(HEAD_KEYS - {"dropout"} - set(config))
    if unknown or missing:
        raise CheckpointError(f"{folder / HEAD_CONFIG} lacks {missing} and has the unknown keys {unknown}")
    if hidden_size is not None and config["hidden_size"] != hidden_size:
        raise CheckpointError(
            f"the head in {folder} is made for a backbone of width {config['hidden_size']}, "
            f"but the backbone's width is {hidden_size}"
        )
    try:
        return head_from_state(config, load_file(folder / HEAD_WEIGHTS))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {HEAD_WEIGHTS}") from None
    except SafetensorError as error:
        raise CheckpointError(f"{folder / HEAD_WEIGHTS} is corrupt: {error}") from error
    except (RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{folder / HEAD_WEIGHTS} does not fit its config: {error}") from error


def save_clef(model: ClefModel, folder: Path) -> None:
    """Write a Clef model in the release layout; the same model gives the same bytes every time.

    Raises:
        CheckpointError: the model does not know the folder that its tokenizer and processor came from.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_head(model.network.head, folder)
    model.network.backbone.model.save_pretrained(folder)
    if model.folder is None:
        raise CheckpointError("this model has no source folder to take the tokenizer from")
    copy_files(model.folder, folder)


def save_head(head: Any, folder: Path) -> None:
    """Write `joint_head_config.json` and `joint_head.safetensors`."""
    from safetensors.torch import save_file

    config = head.config
    keys = ["hidden_size", "width", "routing_layers", "layers", "heads", "feedforward"]
    text = json.dumps({key: getattr(config, key) for key in keys}, indent=2)
    (folder / HEAD_CONFIG).write_text(text, encoding="utf-8")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    save_file(tensors, folder / HEAD_WEIGHTS)


def copy_files(source: Path, target: Path) -> None:
    """Copy tokenizer, processor and licence files unchanged."""
    for name in COPIED:
        if (source / name).exists() and source.resolve() != target.resolve():
            shutil.copyfile(source / name, target / name)


def card_licence(folder: Path) -> str:
    """The SPDX identifier in the front matter of a folder's model card; empty when there is none."""
    card = folder / "README.md"
    if not card.exists():
        return ""
    lines = card.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or lines[0].strip() != "---":
        return ""
    for line in lines[1:]:
        if line.strip() == "---":
            break
        key, _, value = line.partition(":")
        if key.strip() in ("license", "licence"):
            return value.strip()
    return ""


def require_torch() -> None:
    """Check that the torch extra is installed.

    Raises:
        MissingDependencyError: says which command installs it.
    """
    try:
        import safetensors  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"this model needs torch, transformers and safetensors (pip install 'dicast[torch]'): {error}"
        ) from error


def pad_token_id(folder: Path, tokenizer: Any) -> int:
    """The id of the token that fills padding.

    Raises:
        CheckpointError: the tokenizer does not know the configured token.
    """
    config: Mapping[str, Any] = read_json(folder / "tokenizer_config.json")
    token = config.get("pad_token") or "<|endoftext|>"
    pad = tokenizer.token_to_id(token["content"] if isinstance(token, dict) else token)
    if pad is None:
        raise CheckpointError(f"the pad token {token!r} of {folder} is not in its tokenizer")
    return int(pad)


def _parameters(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
