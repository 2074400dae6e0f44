"""The probe of an ESPnet codec, from a recipe's section."""

import difflib
from typing import Any, List, Mapping, Optional

from espnet2.gan_codec.abs_gan_codec import AbsGANCodec
from torch import nn
from torch.nn.modules.conv import _ConvNd

from balancer._scales.sections import read_section
from balancer.quantities.probe import GradientProbe


def codec_probe(codec: AbsGANCodec, section: Mapping[str, Any]) -> GradientProbe:
    """Return the probe that `balancer_conf.probe` describes.

    Args:
        codec: a codec of ESPnet's codec_choices.
        section: `quantities` and `every`, as GradientProbe has them, and `layer`, the
            name of a module in the codec; by default the decoder's last convolution.

    Raises:
        ValueError: no section, an unknown key or layer (the nearest known ones are
            named), or what GradientProbe refuses.
    """
    if not isinstance(section, Mapping):
        raise ValueError(
            "balancer_conf.probe must be a section, such as {every: 100}, but is "
            f"{section!r}"
        )
    options = read_section(GradientProbe, section, "probe")
    return GradientProbe(_layer(codec, options.pop("layer", None)), **options)


def _layer(codec: AbsGANCodec, name: Optional[str]) -> nn.Module:
    convolutions = decoder_convolutions(codec)
    if name is None:
        name = convolutions[-1]
    modules = dict(codec.named_modules())
    if name not in modules:
        near = difflib.get_close_matches(str(name), modules, n=3)
        raise ValueError(
            f"balancer_conf.probe.layer names {name!r}, which is no module of this "
            f"{type(codec).__name__}: "
            + (f"near are {near}" if near else f"its decoder has {convolutions}")
        )
    module: nn.Module = modules[name]
    return module


def decoder_convolutions(codec: AbsGANCodec) -> List[str]:
    """Return the names in the codec of its decoder's convolutions, in its order."""
    return [
        f"generator.decoder.{name}"
        for name, module in codec.generator.decoder.named_modules()
        if isinstance(module, _ConvNd)
    ]
