"""The losses of ESPnet's GAN models that a balancer balances."""

import difflib
import logging
from typing import Any, Dict, List, Mapping, Optional

from torch import nn

from balancer.espnet.turn import loss_modules
from balancer.loss_balancer import Balancer

# The loss modules of the generated waveform, by the names that ESPnet gives them in
# every GAN model. A model without one of them has no such loss.
LOSSES = {
    "reconstruct": "generator_reconstruct_loss",
    "adv": "generator_adv_loss",
    "feat_match": "feat_match_loss",
    "mel": "mel_loss",
}


def losses_of(net: nn.Module) -> Dict[str, str]:
    """Return name → module of the losses of a net's output, in the order of reports.

    Args:
        net: a codec, TTS or singing module of ESPnet.
    """
    losses = {name: module for name, module in LOSSES.items() if hasattr(net, module)}
    if getattr(net, "use_dual_decoder", False):
        losses["mel_real"] = "mel_loss"
    if getattr(net, "vocoder_generator_type", None) == "visinger2":
        losses["mel_ddsp"] = "mel_loss"
    return losses


def balanced_names(net: nn.Module) -> List[str]:
    """Return the names of the losses of a net's output."""
    return list(losses_of(net))


def lambdas_of(
    net: nn.Module, losses: Optional[Mapping[str, str]] = None
) -> Dict[str, float]:
    """Return ESPnet's factors of the balanced losses, but those of 1.

    Args:
        net: a codec, TTS or singing module of ESPnet.
        losses: name → module, by default those of `losses_of`.
    """
    found = {}
    for module in (losses_of(net) if losses is None else losses).values():
        key = f"lambda_{module.removeprefix('generator_').removesuffix('_loss')}"
        if getattr(net, key, 1.0) != 1.0:
            found[key] = float(getattr(net, key))
    return found


def read_losses(net: nn.Module, section: Any) -> Dict[str, str]:
    """Return name → module from `balancer_conf.losses`, checked.

    Raises:
        ValueError: no section, or a module that the net lacks (those that there are
            are named).
    """
    if not isinstance(section, Mapping) or not section:
        raise ValueError(
            "balancer_conf.losses must name loss modules, such as {mel: mel_loss}, but "
            f"is {section!r}"
        )
    there = dict(net.named_modules())
    for name, module in section.items():
        if not isinstance(module, str) or module not in there or not module:
            near = difflib.get_close_matches(str(module), there, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"balancer_conf.losses takes {name!r} from {module!r}, which is no "
                f"module of this {type(net).__name__}: {hint}its loss modules are "
                f"{loss_modules(net)}"
            )
    return dict(section)


def check_balanced(
    net: nn.Module, losses: Mapping[str, str], balancer: Balancer
) -> None:
    """Refuse what cannot work, and warn of what has no effect.

    Raises:
        ValueError: the net has its own balancer switched on; the weights name a loss
            that is not balanced, or lack one that is.
    """
    kind, names = type(net).__name__, list(losses)
    if getattr(net, "loss_balancer", None) is not None:
        raise ValueError(
            "codec_conf.use_loss_balancer is true beside `balancer: grad_norm`: two "
            "balancers would rescale the same losses; set one of them off"
        )
    given = names if balancer.weights is None else list(balancer.weights)
    for name in given:
        if name not in names:
            raise ValueError(
                f"balancer_conf.weights names {name!r}, which is no loss of this "
                f"{kind}: its balanced losses are {names}"
            )
    for name in names:
        if name not in given:
            raise ValueError(
                f"balancer_conf.weights lacks {name!r}, a loss of this {kind}: its "
                f"balanced losses are {names}"
            )
    idle = lambdas_of(net, losses)
    if idle and balancer.balance_grads:
        values = ", ".join(f"{key}: {value}" for key, value in idle.items())
        logging.warning(
            f"{kind} has {values}, which cancels out, since the balancer divides by "
            "each loss's gradient norm: set it to 1 and choose the shares by "
            "balancer_conf.weights"
        )
