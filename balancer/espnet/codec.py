"""ESPnet's GAN codecs with a balanced generator turn."""

from typing import Mapping, Optional

from espnet2.gan_codec.abs_gan_codec import AbsGANCodec
from espnet2.gan_codec.espnet_model import ESPnetGANCodecModel

from balancer.espnet.losses import balanced_names, lambdas_of
from balancer.espnet.model import BalancedGANModel
from balancer.loss_balancer import Balancer

__all__ = ["BalancedGANCodecModel", "balanced_names", "lambdas_of"]


class BalancedGANCodecModel(
    BalancedGANModel, ESPnetGANCodecModel  # type: ignore[misc]
):
    """ESPnet's GAN-codec model whose generator turn is balanced in training.

    Args:
        codec: a codec of ESPnet's codec_choices.
        balancer: balances the losses that depend on the codec's output.
        losses: name → module of these losses, by default those of `losses_of`.

    Raises:
        ValueError: see BalancedGANModel.
    """

    def __init__(
        self,
        codec: AbsGANCodec,
        balancer: Balancer,
        losses: Optional[Mapping[str, str]] = None,
    ):
        super().__init__(ESPnetGANCodecModel(codec=codec), balancer, losses)
