#!/usr/bin/env python3
"""Train a small GAN codec in a plain PyTorch loop, with the loss balancer."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torch.utils.tensorboard import SummaryWriter

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

# torchrun sets these.
RANK, RANKS, LOCAL_RANK = (
    int(os.environ.get(name, default))
    for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
)


class Training:
    """The two networks with their optimizers, and the balancer."""

    def __init__(self, options, device):
        torch.manual_seed(options.seed)
        self.codec = Codec(**options.codec).to(device)
        self.discriminator = Discriminator(**options.discriminator).to(device)
        self.ddp_codec, self.ddp_discriminator = self.codec, self.discriminator
        if RANKS > 1:
            self.ddp_codec = DistributedDataParallel(self.codec)
            self.ddp_discriminator = DistributedDataParallel(self.discriminator)
        adam = {"lr": options.lr, "betas": (0.5, 0.9)}
        self.optimizer_g = torch.optim.Adam(self.codec.parameters(), **adam)
        self.optimizer_d = torch.optim.Adam(self.discriminator.parameters(), **adam)
        dtype = getattr(torch, options.amp) if options.amp else None
        self.autocast = torch.autocast(device.type, dtype, enabled=dtype is not None)
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self.balancer = Balancer.from_config(options.balancer)
        self.balancer.checkpoint_with(self.optimizer_g)

    def turns(self, wave):
        """Train both networks on a batch; return the losses and the stats."""
        with self.autocast:
            decoded, commit = self.ddp_codec(wave)
            losses = generator_losses(self.discriminator, wave, decoded)
            balanced, stats = self.balancer(losses, decoded)
        self.step(self.optimizer_g, sum(balanced.values()) + commit)

        with self.autocast:
            disc = discriminator_loss(self.ddp_discriminator, wave, decoded)
        self.step(self.optimizer_d, disc)
        return {**losses, "commit": commit, "disc": disc}, stats

    def step(self, optimizer, loss):
        """Let an optimizer take a step along the gradient of a loss."""
        optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(optimizer)
        self.scaler.update()

    def saved_parts(self):
        """Return what a checkpoint holds. The averages are in optimizer_g."""
        names = "codec", "discriminator", "optimizer_g", "optimizer_d", "scaler"
        return {name: getattr(self, name) for name in names}

    def save(self, path, epochs):
        """Write a checkpoint after so many epochs."""
        states = {name: x.state_dict() for name, x in self.saved_parts().items()}
        save_beside({**states, "epochs": epochs}, path)

    def resume(self, path, device):
        """Read a checkpoint, if there is one; return the number of its epochs."""
        if not path.exists():
            return 0
        saved = torch.load(path, map_location=device, weights_only=True)
        for name, part in self.saved_parts().items():
            part.load_state_dict(saved[name])
        return saved["epochs"]


def mean_over_ranks(losses):
    """Return the losses as numbers."""
    values = torch.stack([loss.detach() for loss in losses.values()])
    if RANKS > 1:
        dist.all_reduce(values)
    return dict(zip(losses, (values / RANKS).tolist()))


def train(options):
    """Train for the epochs that the checkpoint in out_dir, if any, has not seen."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", LOCAL_RANK) if cuda else torch.device("cpu")
    data = Segments(options.wav_dir, options.segment)
    check_batch(data, options.batch_size, RANKS)
    if RANKS > 1:
        dist.init_process_group("nccl" if cuda else "gloo")
    sampler = DistributedSampler(data, RANKS, RANK, seed=options.seed, drop_last=True)
    loader = DataLoader(data, options.batch_size, sampler=sampler, drop_last=True)
    training = Training(options, device)
    checkpoint = Path(options.out_dir) / "checkpoint.pt"
    first = training.resume(checkpoint, device)
    progress = Progress(options.epochs, shown=RANK == 0)
    progress.begin(first, checkpoint, more="--epochs N")
    writer = SummaryWriter(options.out_dir) if RANK == 0 else None
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        progress.start(epoch, len(loader))
        for step, wave in enumerate(loader, start=epoch * len(loader)):
            losses, stats = training.turns(wave.to(device))
            losses = mean_over_ranks(losses)
            progress.see(losses, stats)
            stats = {**stats, **targets(training.balancer, stats)}
            if writer:
                for name, value in losses.items():
                    writer.add_scalar(f"loss/{name}", value, step)
                for name, value in stats.items():
                    writer.add_scalar(f"balancer/{name}", value, step)
        progress.end()
        if RANK == 0:
            training.save(checkpoint, epoch + 1)
    if writer:
        writer.close()
    if RANKS > 1:
        dist.destroy_process_group()


def main(argv=None):
    """Train as the options say."""
    main_of(train, __file__, __doc__, argv, {"amp": [None, "bfloat16", "float16"]})


if __name__ == "__main__":
    main()
