"""The balanced generator turn, one for every codec of ESPnet's GAN-codec task."""

import logging
from typing import Any, Dict, List, Tuple

import torch
from espnet2.gan_codec.abs_gan_codec import AbsGANCodec
from espnet2.gan_codec.espnet_model import ESPnetGANCodecModel
from espnet2.torch_utils.device_funcs import force_gatherable
from torch import Tensor

from balancer.loss_balancer import Balancer


class BalancedGANCodecModel(ESPnetGANCodecModel):  # type: ignore[misc]
    """ESPnet's GAN-codec model whose generator turn is balanced in training.

    Discriminator turns, validation and inference are ESPnet's. The balancer is no
    module, so state_dict() is that of ESPnet's model.

    Args:
        codec: a codec of ESPnet's codec_choices.
        balancer: balances the losses that depend on the codec's output.

    Raises:
        ValueError: the codec has its own balancer switched on; the weights name a loss
            that this codec lacks, or lack one that it has.
    """

    def __init__(self, codec: AbsGANCodec, balancer: Balancer):
        super().__init__(codec=codec)
        check_codec(codec, balancer)
        self.balancer = balancer

    def forward(
        self, audio: Tensor, forward_generator: bool = True, **kwargs: Any
    ) -> Dict[str, Any]:
        """Return loss, stats, weight and optim_idx, as ESPnet's GANTrainer takes them.

        Args:
            audio: waveforms [B, T].
            forward_generator: whether it is the generator's turn.
        """
        if self.training and forward_generator:
            return balanced_generator_turn(self.codec, self.balancer, audio)
        result: Dict[str, Any] = super().forward(
            audio=audio, forward_generator=forward_generator, **kwargs
        )
        return result


def balanced_names(codec: AbsGANCodec) -> List[str]:
    """Return the names of the losses that depend on a codec's output."""
    names = ["reconstruct", "adv"]
    if codec.use_feat_match_loss:
        names.append("feat_match")
    if codec.use_mel_loss:
        names.append("mel")
        if codec.use_dual_decoder:
            names.append("mel_real")
    return names


def lambdas_of(codec: AbsGANCodec) -> Dict[str, float]:
    """Return the factors of the losses that depend on the output, but those of 1."""
    keys = [f"lambda_{name.removesuffix('_real')}" for name in balanced_names(codec)]
    return {key: getattr(codec, key) for key in keys if getattr(codec, key) != 1.0}


def check_codec(codec: AbsGANCodec, balancer: Balancer) -> None:
    """Refuse what cannot work, and warn of what has no effect (see the model)."""
    if getattr(codec, "loss_balancer", None) is not None:
        raise ValueError(
            "codec_conf.use_loss_balancer is true beside `balancer: grad_norm`: two "
            "balancers would rescale the same losses; set one of them off"
        )
    names = balanced_names(codec)
    given = names if balancer.weights is None else list(balancer.weights)
    for name in given:
        if name not in names:
            raise ValueError(
                f"balancer_conf.weights names {name!r}, which is no loss of this "
                f"{type(codec).__name__}: its balanced losses are {names}"
            )
    for name in names:
        if name not in given:
            raise ValueError(
                f"balancer_conf.weights lacks {name!r}, a loss of this "
                f"{type(codec).__name__}: its balanced losses are {names}"
            )
    idle = lambdas_of(codec)
    if idle and balancer.balance_grads:
        values = ", ".join(f"{key}: {value}" for key, value in idle.items())
        logging.warning(
            f"codec_conf has {values}, which cancels out, since the balancer divides "
            "by each loss's gradient norm: set it to 1 and choose the shares by "
            "balancer_conf.weights"
        )


def balanced_generator_turn(
    codec: AbsGANCodec, balancer: Balancer, audio: Tensor
) -> Dict[str, Any]:
    """Run a codec's generator turn as ESPnet does, with the losses balanced.

    Args:
        codec: in training mode.
        audio: waveforms [B, T].

    Returns:
        What ESPnet's codecs return; the stats hold the balancer's too. `loss` in them
        is the plain sum, as it is without a balancer.
    """
    batch_size = audio.size(0)
    audio = audio.unsqueeze(1)
    audio_hat, commit_loss, quantization_loss, audio_hat_real = generate(codec, audio)
    losses = output_losses(codec, audio, audio_hat, audio_hat_real)
    commit_loss = commit_loss * codec.lambda_commit
    quantization_loss = quantization_loss * codec.lambda_quantization
    codec_loss = commit_loss + quantization_loss
    stats = {_stat_name(name): loss.detach() for name, loss in losses.items()}
    stats.update(
        codec_loss=codec_loss.detach(),
        codec_commit_loss=commit_loss.detach(),
        codec_quantization_loss=quantization_loss.detach(),
        loss=sum((loss.detach() for loss in losses.values()), codec_loss.detach()),
    )
    outputs = [audio_hat] if audio_hat_real is None else [audio_hat, audio_hat_real]
    balanced, balancer_stats = balancer(losses, outputs)
    # The codec's own losses do not depend on the output, so nothing balances them.
    loss = sum(balanced.values()) + codec_loss
    loss, stats, weight = force_gatherable(
        (loss, {**stats, **balancer_stats}, batch_size), loss.device
    )
    return {"loss": loss, "stats": stats, "weight": weight, "optim_idx": 0}


def generate(codec: AbsGANCodec, audio: Tensor) -> Tuple[Any, ...]:
    """Return the generator's outputs, those of the discriminator's turn if cached."""
    if codec.cache_generator_outputs and codec._cache is not None:
        outputs, codec._cache = codec._cache, None
    else:
        outputs = codec.generator(audio, use_dual_decoder=codec.use_dual_decoder)
        if codec.cache_generator_outputs:
            codec._cache = outputs
    return tuple(outputs)


def output_losses(
    codec: AbsGANCodec, audio: Tensor, audio_hat: Tensor, audio_hat_real: Any
) -> Dict[str, Tensor]:
    """Return the losses that depend on the output, by name.

    Args:
        audio: [B, 1, T]; audio_hat and, with the dual decoder, audio_hat_real too.
    """
    p_hat = codec.discriminator(audio_hat)
    with torch.no_grad():
        p = codec.discriminator(audio)
    losses = {
        "reconstruct": codec.generator_reconstruct_loss(audio, audio_hat)
        * codec.lambda_reconstruct,
        "adv": codec.generator_adv_loss(p_hat) * codec.lambda_adv,
    }
    if codec.use_feat_match_loss:
        losses["feat_match"] = codec.feat_match_loss(p_hat, p) * codec.lambda_feat_match
    if codec.use_mel_loss:
        losses["mel"] = mel_loss(codec, audio, audio_hat) * codec.lambda_mel
        if codec.use_dual_decoder:
            mel_real = mel_loss(codec, audio, audio_hat_real)
            losses["mel_real"] = mel_real * codec.lambda_mel
    return losses


def mel_loss(codec: AbsGANCodec, audio: Tensor, audio_hat: Tensor) -> Tensor:
    """Return the codec's mel loss, in float32 whatever autocast says.

    In float16 the floor under its logarithm, 1e-10, is zero, and its gradient NaN.
    """
    with torch.autocast(audio.device.type, enabled=False):
        loss: Tensor = codec.mel_loss(audio_hat.float(), audio.float())
    return loss


def _stat_name(name: str) -> str:
    return "mel_loss_real" if name == "mel_real" else f"{name}_loss"
