"""The training that a soak runs: a small GAN on sines, with all that a trainer does."""

import copy
import io
import math
import pickle
from typing import Any, Callable, Dict, List, Tuple

import torch
from soak_faults import BAD_INPUT, EMPTY, FLOAT16, Faults, spoil
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from balancer import Balancer

WEIGHTS = {"l1": 1.0, "spectrum": 2.0, "adv": 3.0, "feat": 3.0}
DECAY, UPDATE_EVERY = 0.9, 2
BATCH, LENGTH = 4, 128
# A cosine transform; torch.fft takes no empty batch.
COSINES = torch.cos(
    math.pi / LENGTH * torch.outer(torch.arange(LENGTH) + 0.5, torch.arange(LENGTH))
)


class Training:
    """Generator and discriminator, an optimizer for each, and the balancer.

    Args:
        rank: of this process.
        ranks: with more than one, both nets are wrapped for them.
    """

    def __init__(self, rank: int, ranks: int):
        self.rank, self.ranks = rank, ranks
        self.skipped = 0
        self._make()

    def _make(self) -> None:
        torch.manual_seed(0)
        self.generator = nn.Sequential(
            nn.Conv1d(1, 8, 9, padding=4), nn.ELU(), nn.Conv1d(8, 1, 9, padding=4)
        )
        self.critic = nn.Sequential(
            nn.Conv1d(1, 8, 9, stride=4), nn.LeakyReLU(0.1), nn.Conv1d(8, 1, 3)
        )
        self.optimizers = [
            torch.optim.Adam(net.parameters(), lr=1e-3)
            for net in (self.generator, self.critic)
        ]
        self.balancer = Balancer(
            weights=WEIGHTS, ema_decay=DECAY, update_every=UPDATE_EVERY
        )
        self._connect()

    def _connect(self) -> None:
        self.balancer.checkpoint_with(self.optimizers[0])
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)
        self.wrapped = [
            DDP(net) if self.ranks > 1 else net for net in (self.generator, self.critic)
        ]

    def step(self, step: int, faults: Faults) -> Dict[str, float]:
        """Run a generator and a discriminator turn; return the balancer's stats."""
        float16 = FLOAT16 in faults
        if float16 != self.scaler.is_enabled():  # a stretch of float16 begins or ends
            self.scaler = torch.amp.GradScaler(
                "cpu", init_scale=2.0**10, enabled=float16
            )
        x = self.batch(step)
        x = x[: 0 if EMPTY in faults else BATCH]
        heard = x.clone()
        if BAD_INPUT in faults and len(x):
            heard[0, 0, 0] = math.nan
        with torch.autocast("cpu", dtype=torch.float16, enabled=float16):
            y = self.wrapped[0](heard)
            losses = spoil(self.losses(x, y), faults)
            new_losses, stats = self.balancer(losses, y)
            total = sum(loss.float() for loss in new_losses.values())
        self._update(0, total)
        with torch.autocast("cpu", dtype=torch.float16, enabled=float16):
            scores = self.wrapped[1](torch.cat([x, y.detach()])).float()
            real, fake = scores[: len(x)], scores[len(x) :]
            total = mean((1 - real).relu()) + mean((1 + fake).relu())
        self._update(1, total)
        return stats

    def batch(self, step: int) -> Tensor:
        """Return noisy sines, [B, 1, T], other ones on each rank."""
        generator = torch.Generator().manual_seed(step * self.ranks + self.rank)
        pitch = 0.05 + 0.3 * torch.rand(BATCH, 1, 1, generator=generator)
        noise = 0.1 * torch.randn(BATCH, 1, LENGTH, generator=generator)
        return torch.sin(pitch * torch.arange(LENGTH)) + noise

    def losses(self, x: Tensor, y: Tensor) -> Dict[str, Tensor]:
        """Return the generator's losses of its output."""
        hidden_x, hidden_y = self.critic[0](x), self.critic[0](y)
        return {
            "l1": mean((y.float() - x).abs()),
            "spectrum": mean(((y - x) @ COSINES).float().abs()),
            "adv": mean((1 - self.critic[1:](hidden_y).float()).relu()),
            "feat": mean((hidden_y.float() - hidden_x.detach().float()).abs()),
        }

    def _update(self, turn: int, total: Tensor) -> None:
        optimizer = self.optimizers[turn]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        optimizer.zero_grad()
        self.scaler.scale(total).backward()
        self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        if torch.isfinite(norm):
            self.scaler.step(optimizer)
            self.scaler.update()
        else:
            self.skipped += 1
            if self.scaler.is_enabled():
                self.scaler.update(self.scaler.get_scale() / 2)

    def parameters(self) -> List[Tensor]:
        """Return all that is trained."""
        return [*self.generator.parameters(), *self.critic.parameters()]

    def refuse(self) -> bool:
        """Make calls that must be refused; tell whether they were and changed nothing.

        They are refused by each rank alone, before it waits for another.
        """
        before, refusals = self.state(), 0
        y = self.generator(self.batch(0))
        bad_calls: List[Tuple[Dict[str, Tensor], Any]] = [
            ({}, y),
            ({"l1": y.mean(), "l3": y.mean()}, y),
            ({"l1": y.mean(), "adv": torch.ones(())}, y),
            ({"l1": y}, y),
            ({"l1": y.mean()}, y.detach()),
            ({"l1": y.mean()}, [y, y]),
        ]
        for losses, input in bad_calls:
            try:
                self.balancer(losses, input)
            except ValueError:
                refusals += 1
        return refusals == len(bad_calls) and self.state() == before

    def validate(self) -> bool:
        """Call without gradients; tell whether it came out and changed nothing."""
        before = self.state()
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                x = self.batch(0)
                new_losses, stats = self.balancer(self.losses(x, self.generator(x)), x)
                total = sum(new_losses.values()) + sum(stats.values())
        return bool(torch.isfinite(total)) and self.state() == before

    def restore(self) -> bool:
        """Save all, make all anew, load it; tell whether the balancer came back."""
        before, file = self.state(), io.BytesIO()
        parts = [self.generator, self.critic, *self.optimizers]
        torch.save([part.state_dict() for part in parts], file)
        self._make()
        file.seek(0)
        parts = [self.generator, self.critic, *self.optimizers]
        for part, state in zip(parts, torch.load(file, weights_only=True)):
            part.load_state_dict(state)
        return self.state() == before

    def replace(self, make: Callable[[Any], Any]) -> bool:
        """Go on with a copy of all; tell whether the balancer is the same."""
        before = self.state()
        copied = make((self.generator, self.critic, self.optimizers, self.balancer))
        self.generator, self.critic, self.optimizers, self.balancer = copied
        self._connect()
        return self.state() == before

    def deepcopy(self) -> bool:
        """Go on with a deep copy."""
        return self.replace(copy.deepcopy)

    def pickle(self) -> bool:
        """Go on with what a pickle brings back."""
        return self.replace(lambda parts: pickle.loads(pickle.dumps(parts)))

    def state(self) -> str:
        """Return the balancer's state as text, in which NaN equals NaN."""
        return repr(self.balancer.state_dict())


def mean(values: Tensor) -> Tensor:
    """Return the mean, and 0 with a gradient for a batch that is empty."""
    return values.sum() / max(1, values.numel())
