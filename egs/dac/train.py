#!/usr/bin/env python3
"""Train Descript's DAC, small, in the shape of its own loop, with the loss balancer."""

import sys
import warnings
from pathlib import Path

import dac
import soundfile
import torch
from audiotools import AudioSignal
from dac.nn.loss import GANLoss, MelSpectrogramLoss
from torch.nn.utils import clip_grad_norm_
from torch.utils.tensorboard import SummaryWriter
from tqdm import trange

from balancer import Balancer
from balancer.reports import targets
from balancer.reports.recordings import find, load

# What several recipes share.
sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from small_training import (  # noqa: E402
    Segments,
    check_batch,
    main_of,
    save_beside,
)
from small_training.speech import RATE  # noqa: E402

BALANCED = "mel", "feat", "adv"  # the losses of the decoded waveform
CLIP_G, CLIP_D = 1e3, 10.0  # norms of the parameters' gradients


class Training:
    """DAC and its discriminators with their optimizers, and the balancer, if any."""

    def __init__(self, options, device):
        torch.manual_seed(options.seed)
        self.generator = dac.model.DAC(**options.dac, sample_rate=RATE).to(device)
        self.discriminator = dac.model.Discriminator(
            **options.discriminator, sample_rate=RATE
        ).to(device)
        self.optimizer_g, self.scheduler_g = optimizer(self.generator, options)
        self.optimizer_d, self.scheduler_d = optimizer(self.discriminator, options)
        self.mel_loss = MelSpectrogramLoss(**options.mel_loss)
        self.gan_loss = GANLoss(self.discriminator)
        self.lambdas = options.lambdas
        dtype = getattr(torch, options.amp) if options.amp else None
        self.autocast = torch.autocast(device.type, dtype, enabled=dtype is not None)
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self.balancer = None
        if options.balancer == "grad_norm":
            self.balancer = Balancer.from_config(options.balancer_conf)
            self.balancer.checkpoint_with(self.optimizer_g)

    def turns(self, wave):
        """Train both networks on a batch; return the losses and the stats."""
        signal = AudioSignal(wave, RATE)
        with self.autocast:
            out = self.generator(signal.audio_data, RATE)
            decoded = AudioSignal(out["audio"], RATE)
            disc = self.gan_loss.discriminator_loss(decoded, signal)
        self.step(self.optimizer_d, self.scheduler_d, disc, CLIP_D)

        with self.autocast:
            losses = self.generator_losses(decoded, signal)
            losses["commitment"] = out["vq/commitment_loss"]
            losses["codebook"] = out["vq/codebook_loss"]
            loss, stats = self.total(losses, out["audio"])
        self.step(self.optimizer_g, self.scheduler_g, loss, CLIP_G)
        self.scaler.update()
        return {**losses, "disc": disc}, stats

    def generator_losses(self, decoded, signal):
        """Return the losses that are computed from the decoded waveform."""
        mel = self.mel_loss(decoded, signal)
        adv, feat = self.gan_loss.generator_loss(decoded, signal)
        return {"mel": mel, "feat": feat, "adv": adv}

    def total(self, losses, audio):
        """Return what the generator descends, and the balancer's stats."""
        scaled = {name: self.lambdas[name] * loss for name, loss in losses.items()}
        if self.balancer is None:
            return sum(scaled.values()), {}
        balanced, stats = self.balancer({x: losses[x] for x in BALANCED}, audio)
        return sum({**scaled, **balanced}.values()), stats

    def step(self, optimizer, scheduler, loss, clip):
        """Let an optimizer take a step along the clipped gradient of a loss."""
        optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        clip_grad_norm_(optimizer.param_groups[0]["params"], clip)
        self.scaler.step(optimizer)
        scheduler.step()

    def saved_parts(self):
        """Return what a checkpoint holds. The averages are in optimizer_g."""
        names = "generator", "optimizer_g", "scheduler_g"
        names += "discriminator", "optimizer_d", "scheduler_d", "scaler"
        return {name: getattr(self, name) for name in names}

    def save(self, path, steps):
        """Write a checkpoint after so many steps."""
        states = {name: x.state_dict() for name, x in self.saved_parts().items()}
        # The quantizer draws its dropout from this generator.
        save_beside({**states, "steps": steps, "random": torch.get_rng_state()}, path)

    def resume(self, path, device):
        """Read a checkpoint, if there is one; return the number of its steps."""
        if not path.exists():
            return 0
        saved = torch.load(path, map_location=device, weights_only=True)
        for name, part in self.saved_parts().items():
            part.load_state_dict(saved[name])
        torch.set_rng_state(saved["random"].cpu())
        return saved["steps"]

    @torch.no_grad()
    def decode(self, wave):
        """Return a recording of any length as it comes out of the codec."""
        self.generator.eval()
        decoded = self.generator(wave.view(1, 1, -1), RATE)["audio"]
        self.generator.train()
        return decoded.flatten().float()


def optimizer(network, options):
    """Return DAC's optimizer of a network, and its schedule."""
    adam = torch.optim.AdamW(network.parameters(), options.lr, (0.8, 0.99))
    return adam, torch.optim.lr_scheduler.ExponentialLR(adam, options.gamma)


class Batches:
    """The batch of a step, the same whenever it is asked for.

    Each epoch has an order of its own; what does not fill a batch is left out.
    """

    def __init__(self, data, size, seed):
        self.data, self.size, self.seed = data, size, seed
        self.in_epoch = len(data) // size

    def __getitem__(self, step):
        epoch, number = divmod(step, self.in_epoch)
        random = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(len(self.data), generator=random)
        picked = order[number * self.size : (number + 1) * self.size]
        return torch.stack([self.data[int(i)] for i in picked])


def first_recording(folder, length):
    """Return the first recording in a folder that is long enough to train on."""
    waves = (load(path, RATE, length) for path in find(folder))
    return torch.from_numpy(next(wave for wave in waves if wave is not None))


def log(writer, step, losses, stats, balancer):
    """Write a step's losses, stats and targets to TensorBoard."""
    for name, loss in losses.items():
        writer.add_scalar(f"loss/{name}", loss.detach(), step)
    if balancer is not None:
        stats = {**stats, **targets(balancer, stats)}
    for name, value in stats.items():
        writer.add_scalar(f"balancer/{name}", value, step)


def train(options):
    """Train for the steps that the checkpoint in out_dir, if any, has not seen."""
    warnings.filterwarnings("ignore", "stft_data changed shape")  # of each mel loss
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Segments(options.wav_dir, options.segment)
    check_batch(data, options.batch_size, ranks=1)
    batches = Batches(data, options.batch_size, options.seed)
    training = Training(options, device)
    out_dir = Path(options.out_dir)
    checkpoint = out_dir / "checkpoint.pt"
    first = training.resume(checkpoint, device)
    writer = SummaryWriter(out_dir)
    bar = trange(first, options.steps, initial=first, total=options.steps, disable=None)
    for step in bar:
        losses, stats = training.turns(batches[step].to(device))
        log(writer, step, losses, stats, training.balancer)
        bar.set_postfix(mel=f"{losses['mel']:.3f}")
        if (step + 1) % options.save_every == 0 or step + 1 == options.steps:
            training.save(checkpoint, step + 1)
    writer.close()
    wave = first_recording(Path(options.wav_dir), options.segment).to(device)
    soundfile.write(out_dir / "decoded.wav", training.decode(wave).cpu().numpy(), RATE)


def main(argv=None):
    """Train as the options say."""
    choices = {
        "amp": [None, "bfloat16", "float16"],
        "balancer": ["grad_norm", "none"],
    }
    main_of(train, __file__, __doc__, argv, choices)


if __name__ == "__main__":
    main()
