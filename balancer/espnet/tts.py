"""ESPnet's GAN-TTS task with `--balancer` and `--balancer_conf`."""

from typing import Mapping, Optional

from espnet2.gan_tts.espnet_model import ESPnetGANTTSModel
from espnet2.tasks.gan_tts import GANTTSTask

from balancer.espnet.model import BalancedGANModel
from balancer.espnet.task import BalancedGANTask, balancer_choices
from balancer.loss_balancer import Balancer


class BalancedGANTTSModel(BalancedGANModel, ESPnetGANTTSModel):  # type: ignore[misc]
    """ESPnet's GAN-TTS model whose generator turn is balanced in training."""


class BalancedGANTTSTask(BalancedGANTask, GANTTSTask):  # type: ignore[misc]
    """ESPnet's GAN-TTS task; with `balancer: none` it is that task to the bit."""

    class_choices_list = [*GANTTSTask.class_choices_list, balancer_choices]

    @classmethod
    def balanced(
        cls,
        model: ESPnetGANTTSModel,
        balancer: Balancer,
        losses: Optional[Mapping[str, str]],
    ) -> BalancedGANTTSModel:
        """Return a balanced model from ESPnet's."""
        return BalancedGANTTSModel(model, balancer, losses)
