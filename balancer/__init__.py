"""A loss balancer for GAN codecs and other models trained on several losses."""

from balancer.loss_balancer import Balancer

__all__ = ["Balancer"]
__version__ = "0.1.0"
