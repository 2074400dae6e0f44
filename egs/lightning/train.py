#!/usr/bin/env python3
"""Train a small GAN codec with Lightning, with the loss balancer."""

import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader, DistributedSampler

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


class GANCodec(lightning.LightningModule):
    """The two networks with their optimizers, the data, and the balancer."""

    # Two optimizers take turns, so this module calls backward and step itself.
    automatic_optimization = False

    def __init__(self, options):
        super().__init__()
        self.options = options
        self.codec = Codec(**options.codec)
        self.discriminator = Discriminator(**options.discriminator)
        self.balancer = Balancer.from_config(options.balancer)

    def configure_optimizers(self):
        adam = {"lr": self.options.lr, "betas": (0.5, 0.9)}
        optimizer_g = torch.optim.Adam(self.codec.parameters(), **adam)
        optimizer_d = torch.optim.Adam(self.discriminator.parameters(), **adam)
        self.balancer.checkpoint_with(optimizer_g)
        return optimizer_g, optimizer_d

    def train_dataloader(self):
        data = Segments(self.options.wav_dir, self.options.segment)
        sampler = DistributedSampler(
            data,
            self.trainer.world_size,
            self.trainer.global_rank,
            seed=self.options.seed,
            drop_last=True,
        )
        return DataLoader(
            data, self.options.batch_size, sampler=sampler, drop_last=True
        )

    def training_step(self, wave):
        optimizer_g, optimizer_d = self.optimizers()
        decoded, commit = self.codec(wave)
        losses = generator_losses(self.discriminator, wave, decoded)
        balanced, stats = self.balancer(losses, decoded)
        self.step(optimizer_g, sum(balanced.values()) + commit)

        disc = discriminator_loss(self.discriminator, wave, decoded)
        self.step(optimizer_d, disc)
        losses = {**losses, "commit": commit, "disc": disc}
        self.log_dict({f"loss/{k}": v for k, v in losses.items()}, sync_dist=True)
        self.log_dict({f"balancer/{k}": v for k, v in stats.items()})
        self.log("stft", losses["stft"], prog_bar=True, logger=False)

    def step(self, optimizer, loss):
        """Let an optimizer take a step along the gradient of a loss."""
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


def main(argv=None):
    """Train for the epochs that the checkpoint in out_dir, if any, has not seen."""
    options = read_options(Path(__file__).with_suffix(".yaml"), __doc__, argv)
    lightning.seed_everything(options.seed)
    trainer = lightning.Trainer(
        **options.trainer,
        logger=TensorBoardLogger(options.out_dir, name="", version=""),
        callbacks=[ModelCheckpoint(options.out_dir, save_last=True, save_top_k=0)],
        log_every_n_steps=1,
    )
    checkpoint = Path(options.out_dir) / "last.ckpt"
    trainer.fit(
        GANCodec(options), ckpt_path=checkpoint if checkpoint.exists() else None
    )


if __name__ == "__main__":
    main()
