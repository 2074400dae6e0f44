"""How well a codec decodes the held-out recordings."""

import importlib.util
from typing import Any, Callable, Dict, List

import numpy as np
import torch
from auraloss.freq import MultiResolutionSTFTLoss
from pystoi import stoi
from torch import Tensor, nn
from torch.nn import functional as F

FRAME = 32  # samples, the product of the codec's strides
# name → heading, digits, whether more is better
SCORES = {
    "stoi": ("STOI", 3, True),
    "snr": ("SNR, dB", 2, True),
    "mr_stft": ("MR-STFT distance", 3, False),
    "pesq": ("PESQ", 3, True),
    "codes": ("codes in use", 0, True),
}


def available() -> List[str]:
    """Return the names of the scores that this environment can give."""
    lacks_pesq = importlib.util.find_spec("pesq") is None
    return [name for name in SCORES if not (name == "pesq" and lacks_pesq)]


@torch.no_grad()
def score(codec: nn.Module, waves: List[Tensor], rate: int) -> Dict[str, float]:
    """Return the means over recordings [T] at a rate in Hz.

    STOI (Taal et al., 2011) by pystoi; the signal-to-noise ratio in dB; the
    multi-resolution STFT distance (Yamamoto et al., 2020) by auraloss; PESQ (ITU-T
    P.862.2, at 8 kHz P.862), if the package `pesq` is there. `codes` is no mean: how
    many entries of the first codebook all recordings together use.
    """
    distance = MultiResolutionSTFTLoss()
    measures: Dict[str, Callable[[Tensor, Tensor], float]] = {
        "stoi": lambda x, y: float(stoi(x.numpy(), y.numpy(), rate)),
        "snr": snr,
        "mr_stft": lambda x, y: float(distance(y[None, None], x[None, None])),
        "pesq": lambda x, y: pesq(x, y, rate),
    }
    found: Dict[str, List[float]] = {
        name: [] for name in available() if name in measures
    }
    codes = set()
    for wave in waves:
        wave = wave[: len(wave) // FRAME * FRAME]
        decoded = codec(wave[None, None])[0][0, 0]
        codes.update(first_codes(codec, wave))
        for name, values in found.items():
            values.append(measures[name](wave, decoded))
    means = {name: float(np.nanmean(values)) for name, values in found.items()}
    return {**means, "codes": len(codes)}


def first_codes(codec: Any, wave: Tensor) -> List[int]:
    """Return which entry of the first codebook each frame is nearest to."""
    frames = F.normalize(codec.encoder(wave[None, None]), dim=1).transpose(1, 2)
    nearest = torch.cdist(frames, codec.quantizer.codebooks[0])[0].argmin(1)
    codes: List[int] = nearest.tolist()
    return codes


def snr(wave: Tensor, decoded: Tensor) -> float:
    """Return the signal-to-noise ratio in dB."""
    noise = (wave - decoded).square().sum()
    return float(10 * torch.log10(wave.square().sum() / noise))


def pesq(wave: Tensor, decoded: Tensor, rate: int) -> float:
    """Return PESQ, nan where it finds no speech."""
    import pesq as package

    mode = "wb" if rate == 16000 else "nb"
    pair: Any = (wave.numpy(), decoded.numpy())
    try:
        return float(package.pesq(rate, *pair, mode))
    except (package.NoUtterancesError, package.BufferTooShortError):
        return float("nan")
