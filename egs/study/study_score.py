"""What a training of the study came to: distances, shares, codes."""

from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import soundfile
import torch
from auraloss.freq import MultiResolutionSTFTLoss
from espnet2.bin.gan_codec_inference import AudioCoding
from espnet2.gan_codec.shared.loss.freq_loss import MultiScaleMelSpectrogramLoss
from study_train import norm
from torch import Tensor
from torchmetrics.functional.audio import (
    scale_invariant_signal_distortion_ratio as si_sdr,
)
from torchmetrics.functional.audio.stoi import (
    short_time_objective_intelligibility as stoi,
)

from balancer.espnet.codec import BalancedGANCodecModel
from balancer.espnet.losses import losses_of
from balancer.espnet.task import BalancedGANCodecTask
from balancer.espnet.turn import WatchedTurn
from balancer.loss_balancer.checkpoint import saved_in
from balancer.reports.files import plain_data_only, read_checkpoint

RATE = 16000  # Hz
CHUNK = 3200  # samples of an item that shares are measured on
BATCHES = 8


def read(data: Path, part: str) -> List[Tensor]:
    """Return the recordings [T] of a part of the data."""
    lines = (data / part / "wav.scp").read_text().splitlines()
    return [
        torch.from_numpy(soundfile.read(line.split(maxsplit=1)[1], dtype="float32")[0])
        for line in lines
    ]


@plain_data_only()
def distances(folder: Path, data: Path) -> Dict[str, float]:
    """Return the means over the held-out recordings, decoded by ESPnet's inference.

    The mel distance is ESPnet's multi-scale loss with EnCodec's FFT sizes, 2^6 to 2^11;
    `codes` is how many of the first codebook's codes are used.
    """
    coding = AudioCoding(str(folder / "config.yaml"), str(folder / "latest.pth"))
    mel = MultiScaleMelSpectrogramLoss(fs=RATE, range_start=6, range_end=11)
    stft = MultiResolutionSTFTLoss()
    found: Dict[str, List[float]] = {}
    codes = set()
    for audio in read(data, "valid"):
        result = coding(audio)
        codes.update(result["codes"][0].flatten().tolist())
        decoded = result["resyn_audio"][: len(audio)]
        audio = audio[: len(decoded)]
        pair = decoded[None, None], audio[None, None]
        for name, value in (
            ("mel", mel(*pair)),
            ("stft", stft(*pair)),
            ("si_sdr", si_sdr(decoded, audio)),
            ("stoi", stoi(decoded, audio, RATE)),
        ):
            found.setdefault(name, []).append(float(value))
    means = {name: float(np.mean(values)) for name, values in found.items()}
    return {**means, "codes": len(codes)}


@plain_data_only()
def shares(folder: Path, data: Path) -> Dict[str, Dict[str, float]]:
    """Return each loss's share of the gradient at the output and in the decoder.

    Shares of the decoder's parameters are ‖s_i ∂l_i/∂θ‖ over their sum. Without a
    balancer s_i is 1. Means over a few batches of the training data.
    """
    model, _ = BalancedGANCodecTask.build_model_from_file(
        folder / "config.yaml", folder / "latest.pth"
    )
    saved = read_checkpoint(folder / "checkpoint.pth")
    if isinstance(model, BalancedGANCodecModel):
        averages = saved_in(saved["optimizers"][0], "balancer")
        model.balancer.load_state_dict(averages)
    model.train()
    model.codec.cache_generator_outputs = False  # no other turn is to follow
    recordings = read(data, "train")
    rng = np.random.default_rng(0)
    found: Dict[str, Dict[str, List[float]]] = {"output": {}, "decoder": {}}
    for _ in range(BATCHES):
        parts = []
        for wave in rng.choice(len(recordings), 4):
            start = rng.integers(len(recordings[wave]) - CHUNK)
            parts.append(recordings[wave][start : start + CHUNK])
        for place, norms in strengths(model, torch.stack(parts)).items():
            for name, value in norms.items():
                share = value / sum(norms.values())
                found[place].setdefault(name, []).append(share)
    return {
        place: {name: float(np.mean(x)) for name, x in names.items()}
        for place, names in found.items()
    }


def strengths(model: Any, audio: Tensor) -> Dict[str, Dict[str, float]]:
    """Return place → loss → norm of its scaled gradient there, for audio [B, T]."""
    codec = model.codec
    codec.loss_balancer = None  # ESPnet's, which would take the losses' gradients
    with WatchedTurn(codec, losses_of(codec)) as turn:
        loss = codec(audio=audio)["loss"]
    losses, outputs = turn.split(loss)[0], turn.outputs
    weights = [p for p in codec.generator.decoder.parameters() if p.requires_grad]
    norms: Dict[str, Dict[str, float]] = {"output": {}, "decoder": {}}
    for name, loss in losses.items():
        for place, at in (("output", outputs), ("decoder", weights)):
            grads = torch.autograd.grad(loss, at, retain_graph=True, allow_unused=True)
            norms[place][name] = norm(grads)
    if isinstance(model, BalancedGANCodecModel):
        stats = model.balancer(losses, outputs)[1]
        for place in norms:
            for name in losses:
                # The study's own condition leaves a loss outside the balancer.
                norms[place][name] *= stats.get(f"{name}_scale") or 1.0
    return norms
