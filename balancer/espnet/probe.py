"""The probe of an ESPnet model, from a recipe's section."""

import difflib
from typing import Any, List, Mapping, Optional

from torch import nn
from torch.nn.modules.conv import _ConvNd

from balancer._scales.sections import read_section
from balancer.quantities.probe import GradientProbe

# What makes the waveform, by the name that a generator of ESPnet's gives it: those of
# the joint models, that of JETS (whose decoder makes features), and all others.
WAVEFORM_DECODERS = ("vocoder", "generator", "decoder")


def probe_of(net: nn.Module, section: Mapping[str, Any]) -> GradientProbe:
    """Return the probe that `balancer_conf.probe` describes.

    Args:
        net: a codec, TTS or singing module of ESPnet.
        section: `quantities` and `every`, as GradientProbe has them, and `layer`, the
            name of a module in the net; by default the decoder's last convolution.

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
    return GradientProbe(_layer(net, options.pop("layer", None)), **options)


def _layer(net: nn.Module, name: Optional[str]) -> nn.Module:
    convolutions = decoder_convolutions(net)
    if name is None:
        name = convolutions[-1]
    modules = dict(net.named_modules())
    if name not in modules:
        near = difflib.get_close_matches(str(name), modules, n=3)
        raise ValueError(
            f"balancer_conf.probe.layer names {name!r}, which is no module of this "
            f"{type(net).__name__}: "
            + (f"near are {near}" if near else f"its decoder has {convolutions}")
        )
    module: nn.Module = modules[name]
    return module


def decoder_convolutions(net: nn.Module) -> List[str]:
    """Return the names in a net of its waveform decoder's convolutions, in order.

    HiFi-GAN registers the convolution of its global conditioning last, though it runs
    first.
    """
    parts = [name for name, _ in net.get_submodule("generator").named_children()]
    decoder = next(f"generator.{name}" for name in WAVEFORM_DECODERS if name in parts)
    return [
        f"{decoder}.{name}"
        for name, module in net.get_submodule(decoder).named_modules()
        if isinstance(module, _ConvNd) and name != "global_conv"
    ]
