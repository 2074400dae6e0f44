#!/usr/bin/env python3
"""Train a small GAN codec with Lightning, with the loss balancer."""

import logging
import sys
import warnings
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch.utils.data import DataLoader, DistributedSampler

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
    main_of,
    save_beside,
)


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
        self.trained = False

    def configure_optimizers(self):
        adam = {"lr": self.options.lr, "betas": (0.5, 0.9)}
        optimizer_g = torch.optim.Adam(self.codec.parameters(), **adam)
        optimizer_d = torch.optim.Adam(self.discriminator.parameters(), **adam)
        self.balancer.checkpoint_with(optimizer_g)
        return optimizer_g, optimizer_d

    def train_dataloader(self):
        data = Segments(self.options.wav_dir, self.options.segment)
        check_batch(data, self.options.batch_size, self.trainer.world_size)
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
        self.progress.see({"stft": losses["stft"].detach()}, stats)
        stats = {**stats, **targets(self.balancer, stats)}
        self.log_dict({f"balancer/{k}": v for k, v in stats.items()})

    def on_train_start(self):
        self.trained = True
        self.begin()

    def begin(self):
        """Say what there is of a training that began before."""
        checkpoint = Path(self.options.out_dir) / "last.ckpt"
        more = "--trainer '{max_epochs: N}'"
        self.progress.begin(self.trainer.current_epoch, checkpoint, more)

    def on_train_epoch_start(self):
        self.progress.start(self.current_epoch, self.trainer.num_training_batches)

    def on_train_epoch_end(self):
        self.progress.end()

    def step(self, optimizer, loss):
        """Let an optimizer take a step along the gradient of a loss."""
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


class BesideCheckpointIO(TorchCheckpointIO):
    """Writes beside the checkpoint: Lightning moves it from another folder, which is no
    renaming where that is on another disk."""

    def save_checkpoint(self, checkpoint, path, storage_options=None):
        save_beside(checkpoint, Path(path))


def train(options):
    """Train for the epochs that the checkpoint in out_dir, if any, has not seen."""
    # What it says of its start and end is said here in the recipes' words.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning.*_pytree")
    lightning.seed_everything(options.seed, verbose=False)
    trainer = lightning.Trainer(
        **options.trainer,
        logger=TensorBoardLogger(options.out_dir, name="", version=""),
        callbacks=[ModelCheckpoint(options.out_dir, save_last=True, save_top_k=0)],
        plugins=[BesideCheckpointIO()],
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = GANCodec(options)
    model.progress = Progress(trainer.max_epochs, trainer.is_global_zero)
    checkpoint = Path(options.out_dir) / "last.ckpt"
    trainer.fit(model, ckpt_path=checkpoint if checkpoint.exists() else None)
    if not model.trained:
        model.begin()


def main(argv=None):
    """Train as the options say."""
    main_of(train, __file__, __doc__, argv)


if __name__ == "__main__":
    main()
