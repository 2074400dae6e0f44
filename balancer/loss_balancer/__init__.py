"""The balancer: what a loss weighs in the gradient no longer hangs on its scale."""

from balancer.loss_balancer.interface import Balancer

__all__ = ["Balancer"]
