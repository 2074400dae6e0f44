"""TensorBoard's "custom scalars" page: each stat with all losses in one chart."""

import itertools
import re
from pathlib import Path
from typing import Dict, List, Sequence

from balancer.loss_balancer import Balancer
from balancer.reports.stats import COSINE, QUANTITIES, STATS

SUFFIX = ".balancer"


def charts(
    losses: Sequence[str], monitor: bool = False, quantities: Sequence[str] = ()
) -> Dict[str, List[str]]:
    """Return title → the regular expressions of the tags in a chart, a line each.

    Args:
        losses: the losses' names.
        monitor: whether the cosines of all pairs are reported.
        quantities: what a probe takes of each loss.

    Example:
        >>> charts(["adv", "mel"], monitor=True)["Cosine of two gradients"]
        ['^adv_mel_cosine$']
    """
    stats = [*STATS, *(stat for stat in QUANTITIES if stat.name in quantities)]
    tags = {
        stat.title: [f"^{re.escape(name)}_{stat.name}$" for name in losses]
        for stat in stats
    }
    if monitor:
        tags[COSINE.title] = [
            f"^{re.escape(f'{a}_{b}')}_{COSINE.name}$"
            for a, b in itertools.combinations(sorted(losses), 2)
        ]
    return tags


def write_layout(folder: Path, losses: Sequence[str], balancer: Balancer) -> None:
    """Write the layout beside the events, in a file of its own that replaces the old.

    Args:
        folder: where the trainer's SummaryWriter writes the training's events.
        losses: the losses' names.
        balancer: its options say what else is reported.
    """
    from torch.utils.tensorboard import SummaryWriter

    for old in folder.glob(f"events.*{SUFFIX}"):
        old.unlink()
    quantities = balancer.probe.quantities if balancer.probe else []
    tags = charts(losses, balancer.monitor, quantities)
    page = {"balancer": {title: ["Multiline", tags[title]] for title in tags}}
    with SummaryWriter(str(folder), filename_suffix=SUFFIX) as writer:
        writer.add_custom_scalars(page)
