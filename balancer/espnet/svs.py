"""ESPnet's GAN-SVS task with `--balancer` and `--balancer_conf`."""

from typing import Mapping, Optional

from espnet2.gan_svs.espnet_model import ESPnetGANSVSModel
from espnet2.tasks.gan_svs import GANSVSTask

from balancer.espnet.model import BalancedGANModel
from balancer.espnet.task import BalancedGANTask, balancer_choices
from balancer.loss_balancer import Balancer


class BalancedGANSVSModel(BalancedGANModel, ESPnetGANSVSModel):  # type: ignore[misc]
    """ESPnet's GAN-SVS model whose generator turn is balanced in training."""


class BalancedGANSVSTask(BalancedGANTask, GANSVSTask):  # type: ignore[misc]
    """ESPnet's GAN-SVS task; with `balancer: none` it is that task to the bit."""

    class_choices_list = [*GANSVSTask.class_choices_list, balancer_choices]

    @classmethod
    def balanced(
        cls,
        model: ESPnetGANSVSModel,
        balancer: Balancer,
        losses: Optional[Mapping[str, str]],
    ) -> BalancedGANSVSModel:
        """Return a balanced model from ESPnet's."""
        return BalancedGANSVSModel(model, balancer, losses)
