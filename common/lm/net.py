"""A network as a script trains it: what it makes of steps, one optimiser step after another, fine-tuning, checkpoints.

A step's prompt and action are what the model reads; `Net.prompt` says how a step becomes a prompt. A value network
(`value_net`) is a copy of another one with a head on the prompt's last token.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.errors import UsageError
from common.lm import fsdp, learn, llm, parallel, resume
from common.lm.checkpoint import Checkpoint
from common.lm.progress import Progress
from common.replay import Step, step_lengths

if TYPE_CHECKING:
    from common.lm.run import Run


@dataclass(eq=False)
class Net:
    """A model, its reader (a tokenizer; of a model that sees a processor), its optimiser.

    tokens: of one forward and backward pass, padding included. eps, betas: of Adam. prompt(step): token ids, or an
    llm.Prompt.
    """

    model: torch.nn.Module
    reader: object
    tokens: int
    eps: float = 1e-8
    betas: tuple = (0.9, 0.98)
    prompt: Callable = attrgetter("prompt_ids")
    optimizer: torch.optim.Optimizer | None = None

    @property
    def tokenizer(self) -> llm.Tokenizer:
        return llm.tokenizer_of(self.reader)

    @property
    def is_value(self) -> bool:
        """Whether it is a value network."""
        return isinstance(self.model, torch.nn.ModuleDict)

    def begin(self, rate: float) -> Net:
        """A new optimiser, AdamW over what is trained of it, at this rate. Returns the Net."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        fused = None if parallel.sharded() else True  # the fused kernel takes no mix of whole and split tensors
        self.optimizer = torch.optim.AdamW(parameters, rate, self.betas, self.eps, weight_decay=0.01, fused=fused)
        return self

    # --- what it makes of steps

    def logprobs(self, steps: list[Step], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """log pi of the tokens of the steps' actions, with gradient: (logprobs [N, L], mask [N, L])."""
        prompts, actions = [self.prompt(step) for step in steps], [step.action_ids for step in steps]
        return llm.token_logprobs(self.model, self.reader, prompts, actions, temperature)

    def action_logprobs(self, steps: list[Step], temperature: float = 1.0) -> Tensor:
        """log pi of the steps' whole actions, with gradient: [N]."""
        return self.logprobs(steps, temperature)[0].sum(dim=1)

    def token_logprobs(self, steps: list[Step], temperature: float = 1.0) -> dict[Step, list[float]]:
        """log pi of the tokens of each step's action, without gradient: {step: list}."""
        scores = self.score(lambda part: self.logprobs(part, temperature)[0], steps)
        return {step: row[: len(step.action_ids)] for step, row in zip(steps, scores, strict=True)}

    def entropies(self, steps: list[Step], temperature: float = 1.0) -> Tensor:
        """The sum over each action's tokens of the entropy of what they were sampled from, with gradient: [N]."""
        prompts, actions = [self.prompt(step) for step in steps], [step.action_ids for step in steps]
        logits = llm.action_logits(self.model, self.reader, prompts, actions)  # N of [T, V]
        logprobs = [(row / (temperature or 1.0)).log_softmax(dim=-1) for row in logits]
        # 0 log 0 is 0, its gradient too: a model that sees has tokens of probability 0
        return torch.stack([-(row.exp() * row.masked_fill(row == -torch.inf, 0.0)).sum() for row in logprobs])

    def value_logits(self, prompts: llm.Ids) -> Tensor:
        """A value network's logits V of states (prompts), with gradient: [N]."""
        hidden, lengths = llm.hidden_states(self.model["body"], self.reader, prompts)
        last = hidden[torch.arange(len(prompts), device=hidden.device), lengths - 1]
        return self.model["head"](last.float()).squeeze(-1)

    def values(self, prompts: llm.Ids, as_probability: bool = True) -> list[float]:
        """V of states (prompts), sigmoid of its logit or that itself, without gradient: a list of floats."""

        def value(part):
            logits = self.value_logits(part)
            return logits.sigmoid() if as_probability else logits

        return learn.map_batches(value, prompts, [len(prompt) for prompt in prompts], self.tokens)

    def score(self, function: Callable, steps: list[Step]) -> list:
        """`function(list of steps) -> tensor [N, ..]` without gradient, over micro-batches; a list in steps' order."""
        return learn.map_batches(function, steps, step_lengths(steps), self.tokens)

    # --- what it learns

    def descend(
        self,
        loss_sum: Callable[[list], Tensor],
        batches: Sequence[list],
        lengths: Callable[[list], list[int]] = step_lengths,
        max_norm: float = 1.0,
        counts: Sequence[float] | None = None,
        rates: Sequence[float] | None = None,
        title: str = "updates",
    ) -> tuple[list[Tensor], list[Tensor]]:
        """One optimiser step on each batch: down the gradient of `loss_sum(batch) / count`.

        batches: lists of steps (or of what `lengths(items)` gives the tokens of). loss_sum(steps): the sum of their
        losses, a scalar with gradient. counts: what each batch's sum is divided by (None: its number of steps). rates:
        each step's learning rate (None: as it is). A batch goes through the model in micro-batches of at most `tokens`
        tokens, whatever their number the same gradient; of several processes each takes its share. The gradient's norm
        is clipped to `max_norm`. `title`: of the progress bar. Returns (losses, norms before clipping): lists of scalar
        tensors.
        """
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        losses, norms = [], []
        learn.train_mode(self.model)
        with Progress(len(batches), title, "update") as bar:
            for number, batch in enumerate(batches):
                if rates is not None:
                    learn.set_learning_rate(self.optimizer, rates[number])
                count = len(batch) if counts is None else counts[number]
                groups = learn.micro_batches(lengths(batch), self.tokens)
                if parallel.sharded():
                    groups = fsdp.evened(groups)
                self.optimizer.zero_grad()
                parts = [[batch[i] for i in group] for group in parallel.share(groups)]
                losses.append(learn.backward(parameters, parts, lambda part, count=count: loss_sum(part) / count))
                norms.append(fsdp.clip_gradients(parameters, max_norm))
                self.optimizer.step()
                bar.advance()
        self.model.eval()
        return losses, norms

    def fine_tune(self, steps: list[Step], args, updates: int = 0) -> float:
        """Supervised fine-tuning: token cross-entropy on the actions of the steps, by an optimiser of its own.

        `args.sft_epochs` passes in batches of `args.sft_batch_size` steps; or `updates` of them, in as many passes as
        these take. The rate rises to `args.sft_learning_rate` over a tenth (a single update has it at
        once), then falls to 0 along a cosine. Returns the mean loss of the last pass.
        """

        def loss_sum(part):
            return -self.logprobs(part)[0].sum()

        rng, a_pass = random.Random(args.seed), math.ceil(len(steps) / args.sft_batch_size)
        updates = updates or args.sft_epochs * a_pass
        batches = learn.shuffled(steps, args.sft_batch_size, math.ceil(updates / a_pass), rng)[:updates]
        counts = [sum(len(step.action_ids) for step in batch) for batch in batches]
        factors = [learn.warmup_cosine(number / updates, updates=updates) for number in range(updates)]
        rates = [args.sft_learning_rate * factor for factor in factors]
        tuned = replace(self).begin(args.sft_learning_rate)
        losses, _ = tuned.descend(loss_sum, batches, counts=counts, rates=rates, title="fine-tuning")
        return learn.mean_loss(losses[(updates - 1) // a_pass * a_pass :], "SFT")

    # --- what a checkpoint holds of it

    def weights(self) -> list | dict[str, Tensor]:
        """For `Run.save_checkpoint`: of a value network what it learns, else what save_pretrained makes a folder of."""
        return fsdp.trained(self.model) if self.is_value else [fsdp.to_save(self.model), self.reader]

    def load(self, checkpoint: Checkpoint, name: str) -> None:
        """The weights that a checkpoint has under this name. Raises UsageError where it has none."""
        if self.is_value:
            fsdp.fill(self.model, checkpoint.weights(name))  # the rest is the same base
        elif checkpoint.folder(name).is_dir():
            llm.load_trained(self.model, checkpoint.folder(name))
        else:
            raise UsageError(f"no weights named {name} in {checkpoint.path}")


def value_net(actor: Net) -> Net:
    """A critic: a copy of the network with a value head on the prompt's last token, zero at first (V = 0.5)."""
    body = llm.copy_network(actor.model)
    head = torch.nn.Linear(body.config.get_text_config().hidden_size, 1, device=body.device, dtype=torch.float32)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    return replace(actor, model=torch.nn.ModuleDict({"body": body, "head": head}), optimizer=None)


def states_of(nets: dict[str, Net | None], rng: random.Random) -> tuple[dict, dict]:
    """(weights, tensors) for `Run.save_checkpoint`: of networks by name (None: not there) and of the random states."""
    nets = {name: net for name, net in nets.items() if net is not None}
    tensors = {name: fsdp.optimizer_state(net.optimizer) for name, net in nets.items() if net.optimizer is not None}
    tensors |= {"rng": rng.getstate(), "torch": torch.get_rng_state()}
    return {name: net.weights() for name, net in nets.items()}, tensors


def restore(run: Run, nets: dict[str, Net | None], rng: random.Random) -> None:
    """The inverse of `states_of`, into networks made anew, from the checkpoint that the run goes on from; then it
    begins (`Run.begin`), in all processes at once. Raises UsageError where the checkpoint is not of such networks."""
    try:
        _load(run.resumed, nets, rng)
    except Exception as error:  # torch, safetensors and peft have no class of their own for it
        changed = resume.changed(run.path, run.args).items()
        flags = "".join(f", --{name.replace('_', '-')} was {before}" for name, (before, now) in changed)
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        said = f"--resume {run.path}: checkpoint {run.resumed.path.name} cannot be loaded with these flags{flags}"
        raise UsageError(f"{said}: {reason}") from error
    run.begin()
    parallel.broadcast(None)  # what came after the checkpoint is dropped: now it may be read


def _load(checkpoint: Checkpoint, nets: dict[str, Net | None], rng: random.Random) -> None:
    tensors = checkpoint.tensors()
    for name, net in nets.items():
        if net is None:
            continue
        if net.optimizer is not None and name not in tensors:
            raise UsageError(f"it has no {name}")
        net.load(checkpoint, name)
        if net.optimizer is not None:
            fsdp.load_optimizer(net.optimizer, tensors[name])
    rng.setstate(tensors["rng"])
    torch.set_rng_state(tensors["torch"])
