"""The codec: a convolutional encoder and decoder, and a residual vector quantizer.

After EnCodec (Défossez et al., 2022, "High Fidelity Neural Audio Compression", section
3.1 and 3.2), without its LSTM and with codebooks that are trained by gradient.
"""

from typing import List, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

COMMITMENT = 0.25  # weight of the pull on the encoder beside that on the codebooks


class Codec(nn.Module):
    """Waveforms through encoder, quantizer and decoder.

    Args:
        channels: of the first layer; each stride doubles them.
        strides: how much each block shortens the waveform; their product is the number
            of samples in a frame.
        dim: size of a frame's vector.
        codebooks: number of stages of the quantizer.
        entries: vectors in each codebook.

    Shape:
        in: [B, 1, T], T a multiple of the product of the strides.
        out: the decoded waveforms, [B, 1, T], float32; the commitment loss, a scalar.
    """

    def __init__(
        self,
        channels: int,
        strides: Sequence[int],
        dim: int,
        codebooks: int,
        entries: int,
    ):
        super().__init__()
        widths = [channels * 2**i for i in range(len(strides) + 1)]
        down: List[nn.Module] = [_conv(1, channels, 7)]
        up: List[nn.Module] = [nn.ELU(), _conv(channels, 1, 7)]
        for narrow, wide, stride in zip(widths, widths[1:], strides):
            down += [_Residual(narrow), nn.ELU(), _shorter(narrow, wide, stride)]
            up = [nn.ELU(), _longer(wide, narrow, stride), _Residual(narrow), *up]
        self.encoder = nn.Sequential(*down, nn.ELU(), _conv(widths[-1], dim, 7))
        self.quantizer = ResidualQuantizer(codebooks, entries, dim)
        self.decoder = nn.Sequential(_conv(dim, widths[-1], 7), *up)

    def forward(self, wave: Tensor) -> Tuple[Tensor, Tensor]:
        """Return the decoded waveforms and the commitment loss."""
        quantized, commit = self.quantizer(self.encoder(wave).float())
        return self.decoder(quantized).float(), commit


class ResidualQuantizer(nn.Module):
    """Each codebook quantizes what those before it have left (EnCodec, section 3.2).

    Frames are brought to unit norm first, as in DAC: latents that grow would leave
    behind codebooks that are trained by gradient.

    Shape:
        in: [B, dim, frames], float32.
        out: the same shape, its gradient passed straight through; and the mean squared
        distance to the nearest entries, a scalar that trains codebooks and encoder.
    """

    def __init__(self, codebooks: int, entries: int, dim: int):
        super().__init__()
        vectors = F.normalize(torch.randn(codebooks, entries, dim), dim=2)
        stages = torch.arange(1, codebooks + 1).view(-1, 1, 1)
        self.codebooks = nn.Parameter(vectors / stages)  # later residuals are smaller

    def forward(self, latent: Tensor) -> Tuple[Tensor, Tensor]:
        """Return the quantized frames and the commitment loss."""
        frames = F.normalize(latent, dim=1).transpose(1, 2)
        residual, commit = frames, latent.new_zeros(())
        for codebook in self.codebooks:
            nearest = torch.cdist(residual.detach(), codebook).argmin(-1)
            entry = F.embedding(nearest, codebook)
            commit = commit + F.mse_loss(entry, residual.detach())
            commit = commit + COMMITMENT * F.mse_loss(residual, entry.detach())
            residual = residual - entry.detach()
        quantized = frames - residual.detach()
        return quantized.transpose(1, 2), commit / len(self.codebooks)


class _Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.ELU(), _conv(width, width // 2, 3), nn.ELU(), _conv(width // 2, width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _conv(narrow: int, wide: int, kernel: int) -> nn.Module:
    return weight_norm(nn.Conv1d(narrow, wide, kernel, padding=kernel // 2))


def _shorter(narrow: int, wide: int, stride: int) -> nn.Module:
    padding = (stride + 1) // 2
    return weight_norm(nn.Conv1d(narrow, wide, 2 * stride, stride, padding))


def _longer(wide: int, narrow: int, stride: int) -> nn.Module:
    padding, odd = (stride + 1) // 2, stride % 2
    return weight_norm(
        nn.ConvTranspose1d(wide, narrow, 2 * stride, stride, padding, odd)
    )
