#!/usr/bin/env python3
"""Train a small GAN codec with Accelerate, with the loss balancer."""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from balancer import Balancer
from balancer.reports import targets

# What several recipes share.
sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from small_codec import (  # noqa: E402
    Codec,
    Discriminator,
    discriminator_loss,
    generator_losses,
)
from small_training import (  # noqa: E402
    Progress,
    Segments,
    check_batch,
    folder_beside,
    main_of,
    resumable,
)


class Training:
    """The two networks with their optimizers, the data, and the balancer."""

    def __init__(self, options, accelerator):
        self.accelerator = accelerator
        data = Segments(options.wav_dir, options.segment)
        check_batch(data, options.batch_size, accelerator.num_processes)
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

    def save(self, checkpoint):
        """Save all there is, beside the checkpoint and then in its place."""
        main = self.accelerator.is_main_process
        with folder_beside(checkpoint, main) as folder:
            self.accelerator.wait_for_everyone()
            self.accelerator.save_state(folder)
            self.accelerator.wait_for_everyone()

    def state_dict(self):
        """Return what save_state saves beside networks, optimizers and scaler."""
        return {"epochs_done": self.epochs_done}

    def load_state_dict(self, state):
        """Restore what state_dict returned."""
        self.epochs_done = state["epochs_done"]


def train(options):
    """Train for the epochs that the checkpoint in out_dir, if any, has not seen."""
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision=options.mixed_precision,
        log_with="tensorboard",
        project_dir=options.out_dir,
        dataloader_config=DataLoaderConfiguration(
            use_seedable_sampler=True, data_seed=options.seed
        ),
    )
    training = Training(options, accelerator)
    accelerator.init_trackers("")
    loader = training.loader
    checkpoint = Path(options.out_dir) / "checkpoint"
    if resumable(checkpoint).exists():
        accelerator.load_state(resumable(checkpoint))
    progress = Progress(options.epochs, accelerator.is_main_process)
    progress.begin(training.epochs_done, checkpoint, more="--epochs N")
    for epoch in range(training.epochs_done, options.epochs):
        loader.set_epoch(epoch)
        progress.start(epoch, len(loader))
        for step, wave in enumerate(loader, start=epoch * len(loader)):
            losses, stats = training.turns(wave)
            losses = training.mean_over_ranks(losses)
            progress.see(losses, stats)
            stats = {**stats, **targets(training.balancer, stats)}
            accelerator.log({f"loss/{k}": v for k, v in losses.items()}, step)
            accelerator.log({f"balancer/{k}": v for k, v in stats.items()}, step)
        progress.end()
        training.epochs_done = epoch + 1
        training.save(checkpoint)
    accelerator.end_training()


def main(argv=None):
    """Train as the options say."""
    choices = {"mixed_precision": ["no", "bf16", "fp16"]}
    main_of(train, __file__, __doc__, argv, choices)


if __name__ == "__main__":
    main()
