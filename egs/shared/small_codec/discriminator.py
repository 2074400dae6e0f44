"""EnCodec's multi-scale STFT discriminator (Défossez et al., 2022, section 3.4)."""

from typing import List, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

Judgement = Tuple[Tensor, List[Tensor]]  # logits, and the features of each layer


class Discriminator(nn.Module):
    """A convolutional network on the complex spectrogram of each FFT size.

    Args:
        channels: of each hidden layer.
        n_ffts: FFT sizes in samples; the hop is a quarter of each.

    Shape:
        in: waveforms [B, 1, T].
        out: for each FFT size the logits and the features of each layer, float32.
    """

    def __init__(self, channels: int, n_ffts: Sequence[int]):
        super().__init__()
        self.scales = nn.ModuleList(_Scale(channels, n_fft) for n_fft in n_ffts)

    def forward(self, wave: Tensor) -> List[Judgement]:
        """Return logits and features of each scale."""
        return [scale(wave) for scale in self.scales]


class _Scale(nn.Module):
    def __init__(self, channels: int, n_fft: int):
        super().__init__()
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        self.layers = nn.ModuleList([_conv(2, channels, (3, 9))])
        for dilation in (1, 2, 4):
            self.layers.append(_conv(channels, channels, (3, 9), (1, 2), dilation))
        self.last = _conv(channels, 1, (3, 3))

    def forward(self, wave: Tensor) -> Judgement:
        n_fft = len(self.window)
        spectrum = torch.stft(
            wave.squeeze(1),
            n_fft,
            n_fft // 4,
            window=self.window,
            normalized=True,
            return_complex=True,
        )
        x = torch.view_as_real(spectrum).permute(0, 3, 2, 1)  # [B, 2, frames, bins]
        features = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
            features.append(x.float())
        return self.last(x).float(), features


def _conv(
    narrow: int,
    wide: int,
    kernel: Tuple[int, int],
    stride: Tuple[int, int] = (1, 1),
    dilation: int = 1,
) -> nn.Module:
    padding = (kernel[0] // 2 * dilation, kernel[1] // 2)
    return weight_norm(nn.Conv2d(narrow, wide, kernel, stride, padding, (dilation, 1)))
