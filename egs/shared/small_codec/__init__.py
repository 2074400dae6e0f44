"""A small GAN codec for speech, that the recipes of three trainers train."""

from small_codec.discriminator import Discriminator
from small_codec.generator import Codec
from small_codec.losses import discriminator_loss, generator_losses

__all__ = [
    "Codec",
    "Discriminator",
    "discriminator_loss",
    "generator_losses",
]
