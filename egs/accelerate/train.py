#!/usr/bin/env python3
"""Train a small GAN codec with Accelerate, with the loss balancer."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from tqdm import tqdm

from balancer import Balancer

# What several recipes share.
sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from small_codec import (  # noqa: E402
    Codec,
    Discriminator,
    discriminator_loss,
    generator_losses,
)
from small_training import Segments, read_options  # noqa: E402


class Training:
    """The two networks with their optimizers, the data, and the balancer."""

    def __init__(self, options, accelerator):
        self.accelerator = accelerator
        data = Segments(options.wav_dir, options.segment)
        loader = DataLoader(data, options.batch_size, shuffle=True, drop_last=True)
        set_seed(options.seed)
        codec = Codec(**options.codec)
        discriminator = Discriminator(**options.discriminator)
        adam = {"lr": options.lr, "betas": (0.5, 0.9)}
        optimizer_g = torch.optim.Adam(codec.parameters(), **adam)
        optimizer_d = torch.optim.Adam(discriminator.parameters(), **adam)
        self.balancer = Balancer.from_config(options.balancer)
        self.balancer.checkpoint_with(optimizer_g)
        self.codec, self.discriminator = accelerator.prepare(codec, discriminator)
        self.optimizer_g, self.optimizer_d, self.loader = accelerator.prepare(
            optimizer_g, optimizer_d, loader
        )
        self.epochs_done = 0
        accelerator.register_for_checkpointing(self)

    def turns(self, wave):
        """Train both networks on a batch; return the losses and the stats."""
        # DistributedDataParallel's wrapper would wait for the discriminator's gradient.
        discriminator = self.accelerator.unwrap_model(self.discriminator)
        with self.accelerator.autocast():
            decoded, commit = self.codec(wave)
            losses = generator_losses(discriminator, wave, decoded)
            balanced, stats = self.balancer(losses, decoded)
        self.step(self.optimizer_g, sum(balanced.values()) + commit)

        with self.accelerator.autocast():
            disc = discriminator_loss(self.discriminator, wave, decoded)
        self.step(self.optimizer_d, disc)
        return {**losses, "commit": commit, "disc": disc}, stats

    def step(self, optimizer, loss):
        """Let an optimizer take a step along the gradient of a loss."""
        optimizer.zero_grad()
        self.accelerator.backward(loss)
        optimizer.step()

    def mean_over_ranks(self, losses):
        """Return the losses as numbers."""
        values = torch.stack([loss.detach() for loss in losses.values()])
        values = self.accelerator.reduce(values, reduction="mean")
        return dict(zip(losses, values.tolist()))

    def state_dict(self):
        """Return what save_state saves beside networks, optimizers and scaler."""
        return {"epochs_done": self.epochs_done}

    def load_state_dict(self, state):
        """Restore what state_dict returned."""
        self.epochs_done = state["epochs_done"]


def main(argv=None):
    """Train for the epochs that the checkpoint in out_dir, if any, has not seen."""
    options = read_options(Path(__file__).with_suffix(".yaml"), __doc__, argv)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision=options.mixed_precision,
        log_with="tensorboard",
        project_dir=options.out_dir,
        dataloader_config=DataLoaderConfiguration(
            use_seedable_sampler=True, data_seed=options.seed
        ),
    )
    accelerator.init_trackers("")
    training = Training(options, accelerator)
    loader = training.loader
    checkpoint = Path(options.out_dir) / "checkpoint"
    if checkpoint.exists():
        accelerator.load_state(checkpoint)
    for epoch in range(training.epochs_done, options.epochs):
        loader.set_epoch(epoch)
        bar = tqdm(
            loader,
            f"epoch {epoch + 1}/{options.epochs}",
            disable=not accelerator.is_main_process,
        )
        for step, wave in enumerate(bar, start=epoch * len(loader)):
            losses, stats = training.turns(wave)
            losses = training.mean_over_ranks(losses)
            bar.set_postfix(stft=f"{losses['stft']:.3f}")
            accelerator.log({f"loss/{k}": v for k, v in losses.items()}, step)
            accelerator.log({f"balancer/{k}": v for k, v in stats.items()}, step)
        training.epochs_done = epoch + 1
        accelerator.save_state(checkpoint)
    accelerator.end_training()


if __name__ == "__main__":
    main()
