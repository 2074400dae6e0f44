"""TorchJD's weightings of a Gram matrix, for losses that pull against each other."""

import inspect
from typing import Any, Dict, Mapping, Optional, Sequence

import torch
from torch import Tensor

from balancer.options import nearest


class Weighting:
    """A weighting of TorchJD, by the name of its module there.

    TorchJD (Quinton & Rey, 2024, "Jacobian Descent for Multi-Objective Optimization",
    https://arxiv.org/abs/2406.16232) turns the K×K Gram matrix of gradients into one
    coefficient for each. Nothing of its algorithms is repeated here.

    Args:
        name: `upgrad`, `dualproj`, `mgda`, `pcgrad`, `cagrad`, `imtl_g`, … Those with a
            memory of their own are refused, since no checkpoint would hold it.
        conf: the weighting's own arguments, e.g. {"c": 0.5} of `cagrad`.

    Raises:
        ImportError: TorchJD, or what it needs for this weighting, is not installed.
        ValueError: it has no such weighting or the weighting has no such argument.

    Example:
        >>> weighting = Weighting("upgrad", {})
        >>> gram = torch.tensor([[1.0, -0.5], [-0.5, 1.0]])
        >>> coefficients = weighting.coefficients(gram, [0.5, 0.5])
        >>> [round(c, 3) for c in coefficients]
        [0.75, 0.75]
    """

    def __init__(self, name: str, conf: Mapping[str, Any]):
        known = _weightings()
        if name not in known:
            raise ValueError(
                f"weighting {name!r} is none of TorchJD's: "
                f"{nearest(name, sorted(known))}"
            )
        if hasattr(known[name], "reset"):
            raise ValueError(
                f"weighting {name!r} keeps a memory of its own, which no checkpoint "
                "would hold: choose another, e.g. 'upgrad'"
            )
        self.takes_preference = (
            "pref_vector" in inspect.signature(known[name]).parameters
        )
        try:
            self._weighting = known[name](**conf)
        except TypeError as error:
            raise ValueError(
                f"weighting_conf {dict(conf)} does not fit {name!r}, whose arguments "
                f"are {inspect.signature(known[name])}: {error}"
            ) from None

    def coefficients(
        self, gram: Tensor, preference: Sequence[float], seed: int = 0
    ) -> Sequence[float]:
        """Return what each gradient is multiplied by before all are summed.

        Args:
            gram: [K, K], inner products of the gradients, float64 on the host.
            preference: what each would be multiplied by if none were in conflict. A
                weighting without a preference gets gradients that are multiplied so.
            seed: of what a weighting draws by lot, alike on all ranks.
        """
        wanted = gram.new_tensor(preference)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.takes_preference:
                self._weighting.pref_vector = wanted
                found = self._weighting(gram)
            else:
                found = wanted * self._weighting(gram * wanted.outer(wanted))
        return [float(coefficient) for coefficient in found]


def read_weighting(
    name: Optional[str], conf: Optional[Mapping[str, Any]]
) -> Optional[Weighting]:
    """Return the weighting of this name, or None for none.

    Raises:
        ImportError, ValueError: see Weighting; or there are arguments and no name.
    """
    if name is not None:
        return Weighting(name, conf or {})
    if conf:
        raise ValueError(
            f"weighting_conf is {dict(conf)} but there is no weighting: name one, or "
            "leave it out"
        )
    return None


def _weightings() -> Dict[str, Any]:
    try:
        from torchjd import aggregation
    except ImportError as error:
        raise ImportError(
            "weighting needs TorchJD: pip install 'espnet-balancer[torchjd]'"
        ) from error
    return {
        vars(aggregation)[name].__module__.rpartition("._")[2]: vars(aggregation)[name]
        for name in aggregation.__all__
        if name.endswith("Weighting") and name != "Weighting"
    }
