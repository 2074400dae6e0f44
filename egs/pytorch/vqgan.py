#!/usr/bin/env python3
"""The balancer in the place of VQGAN's adaptive weight, on a small image tokenizer.

VQGAN (Esser et al., 2021, "Taming Transformers for High-Resolution Image Synthesis",
https://arxiv.org/abs/2012.09841, equation 7) weighs its adversarial loss by the ratio
of two gradient norms at the weight of the decoder's last layer. This trains the same
tokenizer twice, with that weight and with the balancer, and measures in both trainings
what share of the gradient the adversarial loss had, at that layer and at the output.
"""

import argparse
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from tqdm import trange

from balancer import Balancer
from balancer.bin.command import at_least, check_output, run_command

# What several recipes share.
sys.path.append(str(Path(__file__).resolve().parents[1] / "shared"))

from small_codec.generator import ResidualQuantizer  # noqa: E402

DELTA = 1e-6  # the paper's, against a division by zero
PLACES = "output", "last layer"
SMOOTH = 25  # steps that a point of the chart's thick lines stands for


class Tokenizer(nn.Module):
    """Images [B, 1, 8, 8] to 4 × 4 codes and back; returns the commitment loss too."""

    def __init__(self, width=16, dim=8, entries=64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, 2, 1), nn.ELU(), nn.Conv2d(width, dim, 3, padding=1)
        )
        self.quantizer = ResidualQuantizer(1, entries, dim)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(dim, width, 4, 2, 1),
            nn.ELU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ELU(),
        )
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, images):
        latent = self.encoder(images)
        quantized, commit = self.quantizer(latent.flatten(2))
        return self.last(self.decoder(quantized.view_as(latent))), commit


def patch_discriminator(width=16):
    """Return a network that gives a logit for each patch of an image."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 1, 3, padding=1),
    )


def with_balancer(options):
    """Return a function of losses and output: their sum, and what scaled each."""
    balancer = Balancer(weights={"rec": 1.0, "adv": 1.0}, ema_decay=options.ema_decay)

    def weigh(losses, decoded, last):
        balanced, stats = balancer(losses, decoded)
        return sum(balanced.values()), {x: stats[f"{x}_scale"] for x in losses}

    return weigh


def with_adaptive_weight(options):
    """Return the same for VQGAN's weight, from the gradients at the last layer."""

    def weigh(losses, decoded, last):
        rec, adv = (
            torch.autograd.grad(losses[x], last, retain_graph=True)[0].norm()
            for x in ("rec", "adv")
        )
        weight = rec / (adv + DELTA)
        return losses["rec"] + weight * losses["adv"], {"rec": 1.0, "adv": weight}

    return weigh


WAYS = {"balancer": with_balancer, "adaptive weight": with_adaptive_weight}


def train(way, images, options, seed):
    """Return the adversarial loss's share at each step and place, and the tokenizer."""
    torch.manual_seed(seed)
    tokenizer, discriminator = Tokenizer(), patch_discriminator()
    optimizer_g = torch.optim.Adam(tokenizer.parameters(), options.lr, (0.5, 0.9))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), options.lr, (0.5, 0.9))
    last = tokenizer.last.weight
    weigh = WAYS[way](options)
    shares = []
    title = f"{way}, seed {seed}"
    for _ in trange(options.steps, desc=title, disable=not sys.stderr.isatty()):
        batch = images[torch.randint(len(images), (options.batch_size,))]
        decoded, commit = tokenizer(batch)
        logits = discriminator(decoded)
        losses = {"rec": F.l1_loss(decoded, batch), "adv": -logits.mean()}
        norms = norms_at_both_places(losses, decoded, last)
        total, scales = weigh(losses, decoded, last)
        optimizer_g.zero_grad()
        (total + commit).backward()
        optimizer_g.step()

        real, fake = discriminator(torch.cat([batch, decoded.detach()])).chunk(2)
        optimizer_d.zero_grad()
        (F.relu(1 - real).mean() + F.relu(1 + fake).mean()).backward()
        optimizer_d.step()
        shares.append([adversarial_share(norms[place], scales) for place in PLACES])
    return torch.tensor(shares), tokenizer


def norms_at_both_places(losses, decoded, last):
    """Return the norms of the losses' gradients, as balancer and paper take them."""
    norms = {place: {} for place in PLACES}
    for name, loss in losses.items():
        at = torch.autograd.grad(loss, (decoded, last), retain_graph=True)
        norms["output"][name] = at[0].flatten(1).norm(dim=1).mean()
        norms["last layer"][name] = at[1].norm()
    return norms


def adversarial_share(norms, scales):
    """Return the adversarial loss's part of the sum of the scaled norms."""
    rec, adv = (float(norms[x] * scales[x]) for x in ("rec", "adv"))
    return adv / (rec + adv)


def table(results, steps):
    """Return mean and standard deviation of the shares over each quarter, as text."""
    places = [f"{way}, {place}" for way in results for place in PLACES]
    lines = ["share of the adversarial loss (target 0.500): mean ± standard deviation"]
    lines.append("steps".ljust(12) + "".join(x.rjust(29) for x in places))
    for quarter in torch.arange(steps).chunk(4):
        cells = [
            f"{mean:.3f} ± {std:.3f}".rjust(29)
            for shares, _ in results.values()
            for mean, std in zip(shares[quarter].mean(0), shares[quarter].std(0))
        ]
        lines.append(f"{quarter[0] + 1}–{quarter[-1] + 1}".ljust(12) + "".join(cells))
    return "\n".join(lines)


def plot(results, path):
    """Draw the shares over time, a panel for each way."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    for axis, (way, (shares, _)) in zip(axes, results.items()):
        for place, values, color in zip(PLACES, shares.T, ("C0", "C1")):
            axis.plot(values, color=color, linewidth=0.5, alpha=0.4)
            smooth = [x.mean() for x in values.split(SMOOTH)]
            middles = [SMOOTH * (i + 0.5) for i in range(len(smooth))]
            axis.plot(middles, smooth, color=color, label=f"at the {place}")
        axis.axhline(0.5, color="black", linewidth=0.8, linestyle="--", label="target")
        axis.set(title=way, xlabel="step", ylim=(0, 1))
    axes[0].set_ylabel("share of the adversarial loss")
    axes[0].legend(loc="lower right", fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def compare(options):
    """Train both ways; print the table, draw the chart."""
    check_output(options.plot)
    images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 16
    train_set, held_out = images[:-200], images[-200:]
    runs = [
        {way: train(way, train_set, options, seed) for way in WAYS}
        for seed in range(options.seeds)
    ]
    print(table(runs[0], options.steps))
    for way in WAYS:
        with torch.no_grad():
            decoded = [results[way][1](held_out)[0] for results in runs]
        each = ", ".join(f"{F.l1_loss(images, held_out):.4f}" for images in decoded)
        print(f"{way}: L1 on held-out images, of each seed: {each}")
    plot(runs[0], options.plot)
    print(f"chart: {options.plot}")


def main(argv=None):
    """Read the options and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=at_least(4), default=1000)
    parser.add_argument("--batch_size", type=at_least(1), default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ema_decay", type=float, default=0.99)
    parser.add_argument(
        "--seeds",
        type=at_least(1),
        default=1,
        help="trainings each way; the table and the chart are of the first",
    )
    parser.add_argument(
        "--plot", type=Path, default=Path("vqgan.png"), help="the chart"
    )
    run_command(parser, compare, argv)


if __name__ == "__main__":
    main()
