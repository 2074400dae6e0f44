"""Reads, draws and prints what a training's gradients were, in any training loop."""

from balancer.reports.inspection import Inspection
from balancer.reports.inspector import LossInspector, inspect_losses
from balancer.reports.share_targets import targets

__all__ = ["Inspection", "LossInspector", "inspect_losses", "targets"]
