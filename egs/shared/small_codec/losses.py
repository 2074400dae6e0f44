"""The losses of a GAN codec: means over the items of a batch, with no weights."""

from typing import Dict, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

N_FFTS = (1024, 512, 256, 128)  # of the multi-resolution STFT loss


def generator_losses(
    discriminator: nn.Module,
    wave: Tensor,
    decoded: Tensor,
    n_ffts: Sequence[int] = N_FFTS,
) -> Dict[str, Tensor]:
    """Return the losses of the decoded waveforms, as the balancer takes them.

    `l1` and `stft` compare waveforms and spectra, `adv` is the hinge loss of the
    discriminator's logits, `feat` the L1 of its features relative to their size
    (EnCodec, section 3.4).

    The discriminator is called as it is. One that DistributedDataParallel wraps must be
    unwrapped: it would wait for gradients of its parameters, which get none here.
    """
    with torch.no_grad():
        real = discriminator(wave)
    fake = discriminator(decoded)
    adv = [F.relu(1 - logits).mean() for logits, _ in fake]
    feat = [
        (_size(ours - theirs) / _size(theirs)).mean()
        for (_, wanted), (_, found) in zip(real, fake)
        for theirs, ours in zip(wanted, found)
    ]
    return {
        "l1": F.l1_loss(decoded, wave),
        "stft": stft_loss(decoded, wave, n_ffts),
        "adv": torch.stack(adv).mean(),
        "feat": torch.stack(feat).mean(),
    }


def discriminator_loss(
    discriminator: nn.Module, wave: Tensor, decoded: Tensor
) -> Tensor:
    """Return the hinge loss of the discriminator, which is called once for both."""
    losses = []
    for logits, _ in discriminator(torch.cat([wave, decoded.detach()])):
        real, fake = logits.chunk(2)
        losses.append(F.relu(1 - real).mean() + F.relu(1 + fake).mean())
    return torch.stack(losses).mean()


def stft_loss(decoded: Tensor, wave: Tensor, n_ffts: Sequence[int] = N_FFTS) -> Tensor:
    """Return the L1 of log-magnitude spectra, mean over several FFT sizes."""
    losses = [
        F.l1_loss(_log_magnitude(decoded, n_fft), _log_magnitude(wave, n_fft))
        for n_fft in n_ffts
    ]
    return torch.stack(losses).mean()


def _size(features: Tensor) -> Tensor:
    """Return the mean absolute value of each batch item."""
    return features.abs().flatten(1).mean(1)


def _log_magnitude(wave: Tensor, n_fft: int) -> Tensor:
    spectrum = torch.stft(
        wave.squeeze(1),
        n_fft,
        n_fft // 4,
        window=torch.hann_window(n_fft, device=wave.device),
        normalized=True,
        return_complex=True,
    )
    power = spectrum.real.square() + spectrum.imag.square()
    return (power + 1e-6).log() / 2  # a floor of -60 dB, where the log has no slope
