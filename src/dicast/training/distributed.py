"""Processes of a run: one alone, or many under torchrun or accelerate launch. Knows collectives, knows no models.

The global batch does not depend on how many processes share it: every process sums the losses of its micro-batches, and
sums of gradients are divided by the global weight. So n processes follow the loss curve of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dicast.errors import ConfigError
from dicast.training.config import Config

BUCKET_ELEMENTS = 1 << 24
"""Gradients are summed in flat buckets of this many numbers: few collectives, bounded extra memory."""


@dataclass(frozen=True)
class World:
    """This process among the others.

    Attributes:
        rank, size: number of this process and of all.
        device: where this process computes.
        sharded: whether FSDP2 shards the backbone.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    sharded: bool = False

    @property
    def first(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def gather(self, value: Any) -> list[Any]:
        """The picklable values of all processes, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def broadcast(self, value: Any) -> Any:
        """The first process's picklable value."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum gradients over the processes, in place.

        A gradient that some processes lack counts as zero there; one that all lack stays None. Sharded parameters are
        left alone: FSDP2 has averaged them in the backward pass, so they are multiplied by the number of processes.
        """
        if self.size == 1:
            return
        plain = []
        for parameter in parameters:
            if is_sharded(parameter):
                if parameter.grad is not None:
                    parameter.grad.mul_(self.size)
            else:
                plain.append(parameter)
        present = self.sum(torch.tensor([float(parameter.grad is not None) for parameter in plain], device=self.device))
        wanted = [parameter for parameter, count in zip(plain, present.tolist(), strict=True) if count > 0]
        for parameter in wanted:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets([parameter.grad for parameter in wanted if parameter.grad is not None]):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat)
            for gradient, part in zip(
                bucket, torch.split(flat, [gradient.numel() for gradient in bucket]), strict=True
            ):
                gradient.copy_(part.view_as(gradient))


def start_world(config: Config) -> World:
    """Join the process group that the environment describes (RANK, WORLD_SIZE, LOCAL_RANK), or stand alone.

    Raises:
        ConfigError: a device that this machine does not have, or FSDP2 without several processes.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    sharded = config.distributed.strategy == "fsdp2"
    device = pick_device(config.run.device)
    if size == 1:
        if sharded:
            raise ConfigError("fsdp2 needs several processes: start with torchrun", field="distributed.strategy")
        return World(device=device)
    if not dist.is_initialized():
        backend = config.distributed.backend or ("nccl" if device.type == "cuda" else "gloo")
        dist.init_process_group(backend)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return World(dist.get_rank(), size, device, sharded)


def stop_world() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def is_first_process() -> bool:
    """Whether this process writes files; true for a process alone."""
    return not dist.is_initialized() or dist.get_rank() == 0


def pick_device(name: str) -> torch.device:
    """The device that a configuration names; "auto" prefers CUDA, then MPS, then the CPU.

    Plain "cuda" is the GPU of this process's local rank.

    Raises:
        ConfigError: this machine does not have it.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"this machine has no device {name!r}: {str(error).splitlines()[0]}", field="run.device"
        ) from None
    return device


def is_sharded(parameter: Tensor) -> bool:
    """Whether FSDP2 holds only this process's part of the parameter."""
    return hasattr(parameter, "full_tensor")


def _buckets(gradients: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (size + gradient.numel() > BUCKET_ELEMENTS or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.numel()
    if bucket:
        yield bucket
