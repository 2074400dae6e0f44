"""A small GAN codec for speech, shared by the recipes of the three trainers."""

from small_codec.discriminator import Discriminator
from small_codec.generator import Codec
from small_codec.losses import discriminator_loss, generator_losses
from small_codec.options import read_options
from small_codec.speech import Segments

__all__ = [
    "Codec",
    "Discriminator",
    "Segments",
    "discriminator_loss",
    "generator_losses",
    "read_options",
]
