"""TorchJD's weightings of a Gram matrix, for losses that pull against each other."""

import inspect
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch
from torch import Tensor

from balancer._scales.sections import nearest


class Weighting:
    """A weighting of TorchJD, by the name of its module there, or made already.

    TorchJD (Quinton & Rey, 2024, "Jacobian Descent for Multi-Objective Optimization",
    https://arxiv.org/abs/2406.16232) turns the K×K Gram matrix of gradients into one
    coefficient for each. Nothing of its algorithms is repeated here.

    Args:
        given: a name, `upgrad`, `dualproj`, `mgda`, `pcgrad`, `cagrad`, `imtl_g`, …;
            or a section with the weighting's own arguments beside it, e.g. {"name":
            "cagrad", "c": 0.5}; or an object, e.g. UPGradWeighting() of
            torchjd.aggregation, whose pref_vector becomes the losses' weights. Those
            with a memory of their own are refused, since no checkpoint would hold it.

    Attributes:
        text: what tells it from another.
        takes_preference: whether it takes the losses' weights itself.

    Raises:
        ImportError: TorchJD, or what it needs for this weighting, is not installed.
        ValueError: it has no such weighting or the weighting has no such argument.

    Example:
        >>> weighting = Weighting("upgrad")
        >>> gram = torch.tensor([[1.0, -0.5], [-0.5, 1.0]])
        >>> coefficients = weighting.coefficients(gram, [0.5, 0.5])
        >>> [round(c, 3) for c in coefficients]
        [0.75, 0.75]
    """

    def __init__(self, given: Any):
        known = _weightings()
        if isinstance(given, (str, Mapping)):
            conf = {"name": given} if isinstance(given, str) else dict(given)
            name = conf.pop("name", None)
            kind = known.get(name)
            if kind is None:
                raise ValueError(
                    f"weighting {name!r} is none of TorchJD's: "
                    f"{nearest(str(name), sorted(known))}; of a section it is the "
                    "value of `name`"
                )
            self.text = str(name) + (f" {conf}" if conf else "")
            self._weighting: Any = self._made(kind, name, conf)
        else:
            kind = type(given)
            if kind not in known.values():
                raise ValueError(
                    f"weighting is {given!r}, but must be a weighting of TorchJD's: a "
                    "name such as 'upgrad', a section such as {name: cagrad, c: 0.5}, "
                    "or an object such as torchjd.aggregation.UPGradWeighting()"
                )
            self.text = kind.__name__
            self._weighting = given
        if hasattr(kind, "reset"):
            raise ValueError(
                f"weighting {self.text!r} keeps a memory of its own, which no "
                "checkpoint would hold: choose another, e.g. 'upgrad'"
            )
        self.takes_preference = "pref_vector" in inspect.signature(kind).parameters

    @staticmethod
    def _made(kind: Any, name: str, conf: Mapping[str, Any]) -> Any:
        try:
            return kind(**conf)
        except TypeError as error:
            raise ValueError(
                f"weighting {name!r} with the arguments {dict(conf)} cannot be made; "
                f"it takes {inspect.signature(kind)}, given as {{name: {name}, ...}}: "
                f"{error}"
            ) from None

    def coefficients(
        self, gram: Tensor, preference: Sequence[float], seed: int = 0
    ) -> List[float]:
        """Return what each gradient is multiplied by before all are summed.

        Args:
            gram: [K, K], inner products of the gradients, float64 on the host.
            preference: what each would be multiplied by if none were in conflict. A
                weighting without a preference gets gradients that are multiplied so.
            seed: of what a weighting draws by lot, alike on all ranks.
        """
        wanted = gram.new_tensor(preference)
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which seeds every GPU's generator too.
            torch.default_generator.manual_seed(seed)
            if self.takes_preference:
                self._weighting.pref_vector = wanted
                found = self._weighting(gram)
            else:
                found = wanted * self._weighting(gram * wanted.outer(wanted))
        return [float(coefficient) for coefficient in found]


def read_weighting(given: Any) -> Optional[Weighting]:
    """Return the weighting that is given, or None for none.

    Raises:
        ImportError, ValueError: see Weighting.
    """
    if given is None or given == "none":  # as YAML reads it
        return None
    return given if isinstance(given, Weighting) else Weighting(given)


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
