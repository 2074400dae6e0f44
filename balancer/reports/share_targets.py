"""What the shares should be, for a training loop to log beside them."""

from typing import Dict, Mapping

from balancer._scales.weights import weights_at
from balancer.loss_balancer import Balancer
from balancer.reports.stats import losses_of


def targets(balancer: Balancer, stats: Mapping[str, float]) -> Dict[str, float]:
    """Return `{name}_target`, w_i / Σ_j w_j, of each loss of the last call.

    A loop that logs them beside the stats, as `balancer/mel_target`, has dashed lines
    in the picture that `balancer.bin.plot_stats` draws, and a chart in any logger.

    Args:
        balancer: right after the call.
        stats: those that the call returned.

    Returns:
        name_target → in [0, 1], 0 where a loss is not in the call. Nothing if gradients
        were not balanced, if a `weighting` chose the coefficients, or in evaluation.

    Example:
        >>> import torch
        >>> balancer = Balancer(weights={"l1": 3.0, "adv": 1.0})
        >>> y = torch.tensor([[0.5, -1.0]], requires_grad=True)
        >>> _, stats = balancer({"l1": y.abs().mean(), "adv": y.square().sum()}, y)
        >>> targets(balancer, stats)
        {'l1_target': 0.75, 'adv_target': 0.25}
    """
    names = losses_of(stats)
    if not balancer.balance_grads or balancer.weighting is not None:
        return {}
    weights = weights_at(
        balancer.weights or dict.fromkeys(names, 1.0),
        balancer.state_dict()["calls"] - 1,
    )
    # The scale of a loss that is not in the call is 0.
    there = {name: weights[name] * (stats[f"{name}_scale"] != 0) for name in names}
    total = sum(there.values())
    return {
        f"{name}_target": weight / total if total else 0.0
        for name, weight in there.items()
    }
