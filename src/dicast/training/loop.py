"""The training loop: steps, gradients, dev metrics, checkpoints, resumption. Knows the `Trainable` protocol, no model.

Randomness never lives in a generator that would have to be saved: the data order of step k, the augmentation of an
example and the dropout of a micro-batch are all seeded from (seed, step, position). A run that was killed and resumed
therefore does exactly what an unbroken one does, and so does a run on more processes with the same global batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dicast.errors import DicastError
from dicast.training import measure, stages
from dicast.training.config import Config, ScheduleConfig
from dicast.training.data import Example
from dicast.training.distributed import World
from dicast.training.failures import explain_memory, save_bad_batch
from dicast.training.journal import Journal
from dicast.training.objectives import PaddedLogits
from dicast.training.sampling import Plan, Source, Step, dev_batches, stable_seed
from dicast.training.state import CheckpointStore, save_atomically
from dicast.training.targets import Targets, build_targets
from dicast.training.trainable import Trainable, TrainingBatch
from dicast.training.weights import Weights

Augment = Callable[[Example, int], Example]
"""(example, seed) -> the example as it is shown this time."""


class TrainingStoppedError(DicastError):
    """Training cannot go on: the loss or a gradient is not finite."""


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        steps: optimizer steps done, over all resumptions.
        reason: "finished", "early stop" or "time is up".
        dev: last dev metrics; empty without dev data.
        best: best value of the chosen metric and its step, or None.
        seconds: wall time over all resumptions.
        losses: training loss of every step done by this process since it started.
    """

    steps: int
    reason: str
    dev: dict[str, float] = field(default_factory=dict)
    best: tuple[float, int] | None = None
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)


@dataclass
class _MicroBatch:
    """One encoded micro-batch; `counts` is 0 for one that only keeps the processes in step."""

    examples: list[Example]
    indices: tuple[int, ...]
    batch: TrainingBatch
    targets: Targets
    seed: int
    counts: float


class Trainer:
    """Trains one model.

    Args:
        config: the run.
        model: what learns; already on the device.
        train: training examples, those of a source lying together.
        sources: where each source lies in `train`.
        dev: dev examples; may be empty.
        world: this process among the others.
        folder: the run's folder.
        augment: changes an example before it is shown; None shows it as it is.
        reference: rlcd: per training example, question id -> option id -> log-probability of the starting policy.
        journal: where metrics go.
    """

    def __init__(
        self,
        config: Config,
        model: Trainable,
        train: Sequence[Example],
        sources: Sequence[Source],
        dev: Sequence[Example],
        *,
        world: World,
        folder: Path,
        augment: Augment | None = None,
        reference: Sequence[dict[str, dict[str, float]]] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.config, self.model, self.world, self.folder = config, model, world, folder
        self._train, self._dev = train, dev
        self._augment, self._reference = augment, reference
        lengths = [model.length(example) for example in train]
        self.plan = Plan(
            sources,
            lengths,
            config.batch,
            config.schedule,
            seed=config.run.seed,
            group_by=config.data.group_by,
            cost=model.batch_cost,
        )
        self._dev_batches = (
            dev_batches([model.length(example) for example in dev], config.batch, model.batch_cost) if dev else []
        )
        self.journal = journal or Journal(folder if world.first else None, self.plan.total)
        self.weights = Weights(model.module, config.ema.decay)
        self.optimizer = make_optimizer(model.parameter_groups(config.optimizer), config)
        self._store = CheckpointStore(folder, config.checkpoint.keep)
        self._step = 0
        self._best: tuple[float, int] | None = None
        self._stale = 0
        self._measured_at = -1
        self._dev_metrics: dict[str, float] = {}
        self._before = 0.0
        self._began = self._saved_at = time.monotonic()

    def run(self) -> Outcome:
        """Train from the newest checkpoint, or from the start, to the end; the best weights are in place afterwards.

        Raises:
            TrainingStoppedError: the loss or a gradient is not finite; the batch is saved beside the metrics.
        """
        self._resume()
        losses: list[float] = []
        reason = "finished"
        self.model.module.train()
        for step, micro_batches in self._prefetched():
            losses.append(self._take(step, micro_batches))
            self._step = step.number + 1
            last = self._step == self.plan.total
            if self._dev_batches and self._step % self.config.dev.every_steps == 0:
                self._evaluate()
            if self._should_stop_early():
                reason = "early stop"
            elif self._out_of_time():
                reason = "time is up"
            if last or reason != "finished" or self._checkpoint_due():
                self.save()
            if reason != "finished":
                break
        if self._dev_batches and self._measured_at != self._step:
            self._evaluate()
        self._restore_best()
        return Outcome(self._step, reason, self._dev_metrics, self._best, self._elapsed(), losses)

    def evaluate(self) -> list[measure.Row]:
        """Measure on the dev examples with the weights in place; rows of all processes, the same everywhere."""
        batches = self._dev_batches
        rows: list[measure.Row] = []
        self.model.module.eval()
        # Every process runs the same number of batches, since a sharded model computes in step.
        for first in range(0, len(batches), self.world.size):
            mine = min(first + self.world.rank, len(batches) - 1)
            measured = self._measure([self._dev[index] for index in batches[mine]], batches[mine])
            if first + self.world.rank < len(batches):
                rows += measured
        self.model.module.train()
        return [row for part in self.world.gather(rows) for row in part]

    def save(self) -> None:
        """Write a checkpoint; a full disk is reported and survived."""
        state = {
            "weights": self.weights.state(),
            "optimizer": self.weights.optimizer_state(self.optimizer),
            "best": list(self._best) if self._best else None,
            "stale": self._stale,
            "elapsed": self._elapsed(),
            "dev": self._dev_metrics,
        }
        if self.world.first:
            try:
                self._store.save(self._step, state)
                self.journal.write("checkpoint", self._step)
            except OSError as error:
                self.journal.say(f"checkpoint of step {self._step} not written ({error}); training goes on")
                self.journal.write("checkpoint_failed", self._step, error=str(error))
        self._saved_at = time.monotonic()

    def _resume(self) -> None:
        state = self._store.latest()
        if state is None:
            return
        self.weights.load(state["weights"])
        self.weights.load_optimizer_state(self.optimizer, state["optimizer"])
        self._step, self._stale, self._before = int(state["step"]), int(state["stale"]), float(state["elapsed"])
        self._best = (float(state["best"][0]), int(state["best"][1])) if state["best"] else None
        self._dev_metrics = dict(state["dev"])
        self.journal.rewind(self._step)
        self.journal.say(f"resumed after step {self._step} of {self.plan.total}")

    def _take(self, step: Step, micro_batches: Sequence[_MicroBatch]) -> float:
        """One optimizer step; returns the loss per unit of weight over all processes."""
        rate = self._set_rate(step.number)
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for micro in micro_batches:
            loss = self._backward(micro, step)
            values = {"loss": loss.total.detach(), "weight": loss.weight, **loss.parts}
            for name, value in values.items():
                sums[name] = sums.get(name, torch.zeros((), device=self.world.device)) + value * micro.counts
        names = list(sums)
        totals = dict(
            zip(names, self.world.sum(torch.stack([sums[name].float() for name in names])).tolist(), strict=True)
        )
        weight = max(totals.pop("weight"), 1e-12)
        norm = self._apply_gradients(weight, step, micro_batches)
        means: dict[str, float] = {name: value / weight for name, value in totals.items()}
        if (step.number + 1) % self.config.log.every_steps == 0 or step.number + 1 == self.plan.total:
            self.journal.write("step", step.number + 1, epoch=step.epoch, lr=rate, norm=norm, weight=weight, **means)
            self.journal.progress(step.number + 1, means["loss"], rate)
        return means["loss"]

    def _backward(self, micro: _MicroBatch, step: Step) -> stages.StageLoss:
        torch.manual_seed(micro.seed)
        try:
            padded = self._forward(micro.batch)
            loss = self._loss(padded, micro)
            if not bool(torch.isfinite(loss.total)):
                self._stop(f"the loss of step {step.number + 1} is {loss.total.item()}", [micro])
            torch.autograd.backward(loss.total * micro.counts)
        except torch.OutOfMemoryError as error:
            raise explain_memory(error, self.config, len(micro.indices)) from error
        return loss

    def _apply_gradients(self, weight: float, step: Step, micro_batches: Sequence[_MicroBatch]) -> float:
        parameters = self.weights.parameters()
        self.world.sum_gradients(parameters)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for gradient in gradients:
            gradient.div_(weight)
        clip = self.config.optimizer.clip or math.inf
        norm = self.weights.clip(gradients, clip)
        if not math.isfinite(norm):
            self._stop(f"the gradient norm of step {step.number + 1} is {norm}", micro_batches)
        self.optimizer.step()
        self.weights.update_average(self._step)
        return norm

    def _forward(self, batch: TrainingBatch) -> PaddedLogits:
        with self._autocast():
            return self.model.forward_batch(batch.to(self.world.device))

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.config.run.autocast == "none":
            return nullcontext()
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16)

    def _loss(self, padded: PaddedLogits, micro: _MicroBatch) -> stages.StageLoss:
        targets = micro.targets.to(self.world.device)
        if self.config.run.stage == "sft":
            return stages.supervised(padded, targets, self.config.objective)
        assert self._reference is not None
        reference = self._reference_of(micro, padded)
        return stages.rewarded(padded, targets, reference, self.config.rlcd)

    def _reference_of(self, micro: _MicroBatch, padded: PaddedLogits) -> Tensor:
        assert self._reference is not None
        table = torch.zeros(padded.mask.shape)
        row = 0
        for index, questions in zip(micro.indices, micro.batch.questions, strict=True):
            for asked in questions:
                known = self._reference[index][asked.id]
                table[row, : len(asked.options)] = torch.tensor([known[option] for option in asked.options])
                row += 1
        return table.to(self.world.device)

    def _set_rate(self, step: int) -> float:
        factor = rate_factor(step, self.plan.total, self.config.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
        return float(self.optimizer.param_groups[0]["lr"])

    def _stop(self, what: str, micro_batches: Sequence[_MicroBatch]) -> None:
        examples = [example for micro in micro_batches for example in micro.examples]
        place = save_bad_batch(self.folder, self._step + 1, self.world.rank, examples, self.weights)
        raise TrainingStoppedError(
            f"{what}; the batch and the weights before it are in {place}. Usual remedies: a lower optimizer.lr or "
            'optimizer.head_lr, a smaller optimizer.clip, run.autocast = "none", or mending the records of that batch'
        )

    # Encoding ahead of the model -------------------------------------------------------------------------------------

    def _prefetched(self) -> Iterator[tuple[Step, list[_MicroBatch]]]:
        """Steps with their micro-batches of this process, encoded in a thread while the model computes."""
        steps = self.plan.steps(self._step)
        ahead = self.config.batch.prefetch
        if ahead == 0:
            yield from ((step, self._encode(step)) for step in steps)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="dicast-encode") as pool:
            waiting: list[tuple[Step, Future[list[_MicroBatch]]]] = []
            try:
                for step in steps:
                    waiting.append((step, pool.submit(self._encode, step)))
                    if len(waiting) > ahead:
                        first, future = waiting.pop(0)
                        yield first, future.result()
                for first, future in waiting:
                    yield first, future.result()
            finally:
                for _, future in waiting:
                    future.cancel()

    def _encode(self, step: Step) -> list[_MicroBatch]:
        size = self.world.size
        encoded = []
        for turn in range(-(-len(step.micro_batches) // size)):
            position = turn * size + self.world.rank
            ghost = position >= len(step.micro_batches)
            indices = step.micro_batches[0 if ghost else position]
            seed = stable_seed(self.config.run.seed, "micro", step.number, position)
            encoded.append(self._micro_batch(indices, step, seed, 0.0 if ghost else 1.0))
        return encoded

    def _micro_batch(self, indices: tuple[int, ...], step: Step, seed: int, counts: float) -> _MicroBatch:
        examples = [self._train[index] for index in indices]
        if self._augment is not None:
            seeds = [stable_seed(self.config.run.seed, "augment", step.epoch, index) for index in indices]
            examples = [self._augment(example, one) for example, one in zip(examples, seeds, strict=True)]
        batch = self.model.collate(examples)
        targets = build_targets(examples, batch.questions, average=self.config.objective.average)
        return _MicroBatch(examples, indices, batch, targets, seed, counts)

    # Measuring, stopping, keeping the best ---------------------------------------------------------------------------

    @torch.no_grad()
    def _measure(self, examples: Sequence[Example], indices: Sequence[int]) -> list[measure.Row]:
        batch = self.model.collate(examples)
        padded = self._forward(batch)
        cpu = PaddedLogits(*(value.detach().cpu() for value in vars(padded).values()))
        targets = build_targets(examples, batch.questions)
        rows = measure.rows_of(
            cpu, targets, examples, batch.questions, records=indices, partial_credit=self.config.rlcd.partial_credit
        )
        return rows

    def _evaluate(self) -> None:
        self._measured_at = self._step
        with self.weights.averaged():
            rows = self.evaluate()
            self._dev_metrics = measure.summarise(rows)
            if not self._dev_metrics:
                return
            metric = self.config.dev.metric
            value = self._dev_metrics[metric]
            if measure.better(metric, value, self._best[0] if self._best else None):
                self._best, self._stale = (value, self._step), 0
                self._keep_best()
            else:
                self._stale += 1
        shown = "  ".join(f"{name} {value:.4f}" for name, value in self._dev_metrics.items() if name != "questions")
        self.journal.write("dev", self._step, **self._dev_metrics, sources=measure.by_source(rows))
        self.journal.say(f"dev at step {self._step}: {shown}" + ("  (best)" if self._stale == 0 else ""))

    def _keep_best(self) -> None:
        state = self.weights.plain_state()
        if not self.world.first:
            return
        try:
            save_atomically({"step": self._step, "weights": state}, self.folder / "best.pt")
        except OSError as error:
            self.journal.say(f"best weights of step {self._step} not written ({error}); training goes on")
            self.journal.write("best_failed", self._step, error=str(error))

    def _restore_best(self) -> None:
        """Put the best weights (or the running mean) in place for saving."""
        path = self.folder / "best.pt"
        self.world.barrier()
        if self._best is not None and path.exists():
            self.weights.load_plain(torch.load(path, map_location="cpu", weights_only=True)["weights"])
        else:
            self.weights.use_average()
        self.model.module.eval()

    def _should_stop_early(self) -> bool:
        return bool(self.config.dev.patience) and self._stale >= self.config.dev.patience

    def _out_of_time(self) -> bool:
        limit = self.config.schedule.max_minutes * 60
        return bool(limit) and bool(self.world.broadcast(self._elapsed() > limit))

    def _checkpoint_due(self) -> bool:
        every = self.config.checkpoint.every_steps
        if every and self._step % every == 0:
            return True
        minutes = self.config.checkpoint.every_minutes
        return bool(minutes) and bool(self.world.broadcast(time.monotonic() - self._saved_at > minutes * 60))

    def _elapsed(self) -> float:
        return self._before + time.monotonic() - self._began


def make_optimizer(groups: list[dict[str, Any]], config: Config) -> torch.optim.Optimizer:
    """AdamW over the groups; each remembers its own rate as `base_lr`."""
    for group in groups:
        group["base_lr"] = group["lr"]
    beta1, beta2 = config.optimizer.betas
    return torch.optim.AdamW(groups, betas=(beta1, beta2), eps=config.optimizer.eps)


def rate_factor(step: int, total: int, schedule: ScheduleConfig) -> float:
    """Learning rate of a step (0-based) as a share of the full one: linear warm-up, then the configured shape."""
    warm = round(schedule.warmup * total)
    if step < warm:
        return (step + 1) / warm
    if schedule.shape == "constant":
        return 1.0
    progress = (step - warm) / max(1, total - 1 - warm)
    left = 0.5 * (1.0 + math.cos(math.pi * progress)) if schedule.shape == "cosine" else 1.0 - progress
    return schedule.final + (1.0 - schedule.final) * left
