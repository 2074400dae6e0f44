"""A loss balancer for GAN codecs and other models trained on several losses."""

from balancer._scales.weights import Ramp
from balancer.loss_balancer import Balancer
from balancer.quantities.probe import GradientProbe

__all__ = ["Balancer", "GradientProbe", "Ramp"]
__version__ = "0.1.0"
