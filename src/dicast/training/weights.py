"""The weights that learn: their state, their running mean, their gradients' norm. Knows modules, knows no model.

Only trainable parameters are kept in checkpoints; frozen ones come from the starting checkpoint again. Under FSDP2 a
parameter is a part of a tensor; states here are always whole tensors on the CPU, so that a run can be resumed with
another number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dicast.errors import CheckpointError
from dicast.training.distributed import is_sharded

State = dict[str, Tensor]


class Weights:
    """Trainable parameters of a module.

    Args:
        module: the model.
        decay: decay of the running mean (EMA); 0 keeps none.
    """

    def __init__(self, module: nn.Module, decay: float = 0.0) -> None:
        self._named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self._decay = decay
        self._mean: State = {}
        if decay > 0.0:
            self._mean = {name: parameter.detach().clone() for name, parameter in self._named.items()}

    def parameters(self) -> list[Tensor]:
        """The parameters in the module's order."""
        return list(self._named.values())

    def clip(self, gradients: Sequence[Tensor], limit: float) -> float:
        """Scale gradients so that their global norm is at most `limit`; returns the norm before."""
        if not gradients:
            return 0.0
        norms = torch.stack([_whole(torch.linalg.vector_norm(gradient.float())) for gradient in gradients])
        norm = torch.linalg.vector_norm(norms)
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.device))
        return float(norm)

    def update_average(self, step: int) -> None:
        """Move the running mean towards the weights; the decay grows from 0 so that the start is forgotten."""
        if not self._mean:
            return
        decay = min(self._decay, (1.0 + step) / (10.0 + step))
        with torch.no_grad():
            for name, parameter in self._named.items():
                self._mean[name].lerp_(parameter.detach(), 1.0 - decay)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the running mean in place for a while; without one, the weights stay as they are."""
        if not self._mean:
            yield
            return
        kept = {name: parameter.detach().clone() for name, parameter in self._named.items()}
        self.use_average()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self._named.items():
                    parameter.copy_(kept[name])

    def use_average(self) -> None:
        """Put the running mean in place for good."""
        with torch.no_grad():
            for name, mean in self._mean.items():
                self._named[name].copy_(mean)

    def state(self) -> dict[str, State]:
        """Weights and running mean as whole CPU tensors. Every process must call it."""
        return {"weights": self.plain_state(), "mean": {name: _whole(mean).cpu() for name, mean in self._mean.items()}}

    def plain_state(self) -> State:
        """The weights in place as whole CPU tensors. Every process must call it."""
        return {name: _whole(parameter.detach()).cpu().clone() for name, parameter in self._named.items()}

    def load(self, state: Mapping[str, State]) -> None:
        """Take back what :meth:`state` gave.

        Raises:
            CheckpointError: other parameters than these.
        """
        self.load_plain(state["weights"])
        if set(state["mean"]) != set(self._mean):
            raise CheckpointError("the checkpoint was made with another setting of ema.decay (on or off)")
        with torch.no_grad():
            for name, mean in state["mean"].items():
                _copy(self._mean[name], mean)

    def load_plain(self, state: State) -> None:
        """Take back what :meth:`plain_state` gave.

        Raises:
            CheckpointError: other parameters than these.
        """
        if set(state) != set(self._named):
            odd = sorted(set(state) ^ set(self._named))[:3]
            raise CheckpointError(f"the checkpoint holds other trainable weights than this run ({', '.join(odd)}, ...)")
        with torch.no_grad():
            for name, value in state.items():
                _copy(self._named[name], value)

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state with whole CPU tensors. Every process must call it."""
        plain = optimizer.state_dict()
        return {
            "state": _map(plain["state"], lambda value: _whole(value).cpu().clone()),
            "groups": plain["param_groups"],
        }

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`optimizer_state` gave.

        Raises:
            CheckpointError: the parameter groups differ.
        """
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        moments = {index: dict(values) for index, values in state["state"].items()}
        for index, values in moments.items():
            for name, value in values.items():
                if isinstance(value, Tensor) and is_sharded(parameters[index]) and value.ndim:
                    values[name] = _shard_like(value, parameters[index])
        try:
            optimizer.load_state_dict({"state": moments, "param_groups": state["groups"]})
        except ValueError as error:
            raise CheckpointError(f"the checkpoint's optimizer does not fit this run: {error}") from None


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if is_sharded(value) else value  # type: ignore[attr-defined]


def _copy(target: Tensor, value: Tensor) -> None:
    target.copy_(_shard_like(value, target) if is_sharded(target) else value)


def _shard_like(value: Tensor, target: Tensor) -> Tensor:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(target.device), target.device_mesh, target.placements)  # type: ignore[attr-defined]


def _map(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map(item, change) for key, item in value.items()}
    return value
