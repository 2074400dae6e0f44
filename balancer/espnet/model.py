"""ESPnet's GAN models with a balanced generator turn."""

from typing import Any, Dict, Mapping, Optional, Tuple

import torch
from espnet2.torch_utils.device_funcs import force_gatherable
from espnet2.train.abs_gan_espnet_model import AbsGANESPnetModel
from torch import Tensor, nn

from balancer.espnet.losses import check_balanced, losses_of
from balancer.espnet.outside import OutsideWatch
from balancer.espnet.turn import WatchedTurn
from balancer.loss_balancer import Balancer


class BalancedGANModel(AbsGANESPnetModel):  # type: ignore[misc]
    """One of ESPnet's GAN models, whose generator turn is balanced in training.

    It stands before ESPnet's own class among the bases of a model. Discriminator turns,
    validation and inference are ESPnet's. The balancer is no module, so state_dict() is
    that of ESPnet's model.

    Args:
        model: ESPnet's, whose modules these become.
        balancer: balances the losses that depend on the generator's output.
        losses: name → module of these losses, by default those of `losses_of`.

    Attributes:
        outside: watches the losses outside the balance.

    Raises:
        ValueError: the model has its own balancer switched on; the weights name a loss
            that is not balanced, or lack one that is.
    """

    def __init__(
        self,
        model: AbsGANESPnetModel,
        balancer: Balancer,
        losses: Optional[Mapping[str, str]] = None,
    ):
        nn.Module.__init__(self)
        self.__dict__.update(model.__dict__)
        self.balancer = balancer
        net = net_of(model)
        self.outside = OutsideWatch(net)
        self.losses = dict(losses or losses_of(net))
        check_balanced(net, self.losses, balancer)

    def forward(
        self, *args: Any, forward_generator: bool = True, **batch: Any
    ) -> Dict[str, Any]:
        """Return loss, stats, weight and optim_idx, as ESPnet's GANTrainer takes them.

        Args:
            args, batch: what ESPnet's model takes.
            forward_generator: whether it is the generator's turn.

        Raises:
            ValueError: a loss of the output is not among those that are balanced.
        """
        result: Dict[str, Any]
        if not (self.training and forward_generator and torch.is_grad_enabled()):
            result = super().forward(
                *args, forward_generator=forward_generator, **batch
            )
            return result
        result, turn, losses, rest = self.watched_turn(*args, **batch)
        balanced, stats = self.balancer(losses, turn.outputs)
        stats = {**stats, **self.outside(rest, balanced, self.balancer)}
        stats = force_gatherable(stats, rest.device)
        return {
            **result,
            "loss": rest + sum(balanced.values()),
            "stats": {**result["stats"], **stats},
        }

    def watched_turn(
        self, *args: Any, **batch: Any
    ) -> Tuple[Dict[str, Any], WatchedTurn, Dict[str, Tensor], Tensor]:
        """Run the generator's turn and return it, unbalanced, with what was seen of it.

        Returns:
            What ESPnet's forward returned; the turn; the losses to balance; and the sum
            of the others.
        """
        with WatchedTurn(net_of(self), self.losses) as turn:
            result = super().forward(*args, forward_generator=True, **batch)
        return result, turn, *turn.split(result["loss"])


def net_of(model: AbsGANESPnetModel) -> nn.Module:
    """Return the codec, TTS or singing module of one of ESPnet's GAN models.

    It is the one that holds generator, discriminator and losses.
    """
    names = [name for name in ("codec", "tts", "svs") if hasattr(model, name)]
    net: nn.Module = getattr(model, names[0])
    return net
