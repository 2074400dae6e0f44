"""The balancer: what a loss weighs in the gradient no longer hangs on its scale."""

import copy
from types import MappingProxyType
from typing import (
    Any,
    Dict,
    Mapping,
    Optional,
    Sequence,
    Set,
    Tuple,
    Union,
)

import torch
from torch import Tensor
from typeguard import typechecked

from balancer.adaptive import AdaptiveAverages
from balancer.calls import check_differentiable, check_inputs, check_losses
from balancer.checkpoint import save_with
from balancer.distributed import check_group, has_ranks, is_first_rank
from balancer.ema import NormAverages
from balancer.graph import check_paths
from balancer.options import check_balanced, check_options, read_section
from balancer.quantities.probe import GradientProbe
from balancer.scales import ScaleRule
from balancer.schedule import Weight, read_weights, weights_at
from balancer.state import BalancerState
from balancer.stats import loss_stats
from balancer.surrogate import scaled_losses
from balancer.training import TrainingCall
from balancer.watch import ShareWatch
from balancer.weighting import read_weighting


class Balancer:
    """Rescale losses so that each supplies a chosen share of the gradient.

    Let y be the model's output (`input` of the call), l_1 … l_K losses of y,
    g_i = ∂l_i/∂y, and w_i the weights of the losses in the call. Then

        n_i = mean over batch items of ‖g_i[b]‖₂  (per_batch_item=False: ‖g_i‖₂)
        a_i = bias-corrected exponential moving average of n_i
        s_i = total_norm · w_i / Σ_j w_j / (epsilon + a_i)  (balance_grads=False: w_i)

    and the returned losses have the values s_i·l_i and the gradients s_i·g_i. Source:
    the balancer of AudioCraft and EnCodec (Défossez et al., 2022, "High Fidelity
    Neural Audio Compression", section 3.4, https://arxiv.org/abs/2210.13438), whose
    results these are.

    A balancer is no module and never calls backward. The one thing that it remembers
    is an average for each loss; `checkpoint_with` saves them along with an optimizer.

    The call consumes the graphs of the losses, as a backward does. Whatever else is to
    be trained through them belongs in the same call, or use input_only=False.

    Args:
        total_norm: the sum of the norms of the balanced gradients, positive.
        ema_decay: the decay β of the averages, in [0, 1].
        per_batch_item: whether to take norms for each batch item (axis 0).
        epsilon: added to each average, at least 0.
        weights: name → weight w_i ≥ 0; None weighs all losses alike. A loss that is
            not in it is refused. A weight that changes is given as {"start": 0, "end":
            3, "from_step": 1000, "to_step": 2000}, in steps that are calls in training.
        balance_grads: False scales each loss by its weight alone, and still measures.
        monitor: whether to add the cosine of each pair of gradients and the norm of
            the balanced gradient to the stats.
        exact_total_norm: whether total_norm is the average norm of the balanced
            gradient itself. AudioCraft's is the sum of the losses' norms, which is more
            than that of their sum unless all pull the same way.
        weighting: a weighting of TorchJD, e.g. "upgrad", for losses that conflict. It
            gets the Gram matrix of g_i / (epsilon + a_i) and the preferences w_i /
            Σ_j w_j, and its coefficients take their place; see Weighting.
        weighting_conf: arguments of that weighting.
        adaptive_average: whether the averages reach back only as far as the norms
            allow, so that shares stay on target while norms drift; ema_decay then is
            the longest memory. See AdaptiveAverages.
        input_only: True returns losses that carry gradient to `input` and nowhere
            else, so a discriminator gets none in the generator's turn. False returns
            s_i·l_i on the whole graph, for losses with parameters of their own.
        update_every: N, measure the norms on every Nth call. In between the averages
            are held, and with input_only the losses are walked once, jointly.
        process_group: the ranks that share a batch, of torch.distributed; None takes
            all. With pipeline or tensor parallelism, those of the data parallelism.
        probe: adds quantities of each loss's per-sample gradients to the stats, as
            `{name}_norm_test`. The attribute `probe` may be set later, too.

    Raises:
        ValueError: an argument is out of its range.
        typeguard.TypeCheckError: an argument is of another type.

    Example:
        >>> import torch
        >>> balancer = Balancer(weights={"l1": 2.0, "adv": 1.0}, ema_decay=0.9)
        >>> y = torch.tensor([[0.5, -1.0]], requires_grad=True)
        >>> losses = {"l1": y.abs().mean(), "adv": 1e-6 * y.square().sum()}
        >>> new_losses, stats = balancer(losses, y)
        >>> sum(new_losses.values()).backward()
        >>> round(stats["l1_share"], 3), round(stats["adv_share"], 3)
        (0.667, 0.333)
    """

    @typechecked
    def __init__(
        self,
        total_norm: float = 1.0,
        ema_decay: float = 0.999,
        per_batch_item: bool = True,
        epsilon: float = 1e-12,
        *,
        weights: Optional[Mapping[str, Any]] = None,
        balance_grads: bool = True,
        monitor: bool = False,
        exact_total_norm: bool = False,
        weighting: Optional[str] = None,
        weighting_conf: Optional[Mapping[str, Any]] = None,
        adaptive_average: bool = False,
        input_only: bool = True,
        update_every: int = 1,
        process_group: Any = None,
        probe: Optional[GradientProbe] = None,
    ):
        weighting = None if weighting == "none" else weighting  # as YAML reads it
        check_options(total_norm, ema_decay, epsilon, update_every)
        check_balanced(balance_grads, exact_total_norm, weighting)
        check_group(process_group)
        self.total_norm = total_norm
        self.ema_decay = ema_decay
        self.per_batch_item = per_batch_item
        self.epsilon = epsilon
        self.weights = weights
        self.balance_grads = balance_grads
        self.monitor = monitor
        self.exact_total_norm = exact_total_norm
        self._weighting = read_weighting(weighting, weighting_conf)
        self.adaptive_average = adaptive_average
        self.input_only = input_only
        self.update_every = update_every
        self.process_group = process_group
        self.probe = probe
        self.reset()

    @classmethod
    def from_config(cls, section: Mapping[str, Any]) -> "Balancer":
        """Return a balancer from a recipe's YAML section, by the arguments' names.

        Args:
            section: what YAML read; numbers may be text, as `1e-12` is in YAML 1.1.

        Raises:
            ValueError: an unknown key (the nearest known one is named), or a value
                that is out of its range.

        Example:
            >>> Balancer.from_config({"epsilon": "1e-8", "weights": {"mel": 1}}).epsilon
            1e-08
        """
        if isinstance(section.get("probe"), Mapping):
            raise ValueError(
                "a section cannot hold the layer that a probe needs: leave `probe` out "
                "of it and set balancer.probe = GradientProbe(layer, ...)"
            )
        return cls(**read_section(cls, section))

    # torch.compile runs the call as it is: there is nothing in it to fuse.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    def __call__(
        self, losses: Mapping[str, Tensor], input: Union[Tensor, Sequence[Tensor]]
    ) -> Tuple[Dict[str, Tensor], Dict[str, float]]:
        """Return the balanced losses and what was done to them.

        Args:
            losses: name → tensor of one element, computed from `input`.
            input: the tensor that all losses are computed from, [B, …] with
                per_batch_item, or a sequence of such tensors. Over several, a norm is
                that of their concatenation. A loss may depend on some of them only.

        Returns:
            The losses, each of its shape and dtype, ready to be summed; and the stats,
            floats, for each loss `name` (with `weights` for each name in them, zero
            where the loss is not in this call):
            `{name}_norm` n_i as last measured; `{name}_ratio` a_i / Σ_j a_j, its share
            of the gradient if nothing were balanced; `{name}_share`
            s_i n_i / Σ_j s_j n_j, its share of the balanced gradient, whose target is
            w_i / Σ_j w_j; `{name}_scale` s_i. With monitor also `{a}_{b}_cosine` for
            each pair, and `total_grad_norm`, the norm of Σ_i s_i g_i. With a probe also
            `{name}_{quantity}`, as last measured, nan before.

            With grad mode off, or if no loss requires grad, nothing is measured: the
            losses come back times their present scales, or times their weights while
            they have no average, and the stats are `{name}_scale` alone.

        Raises:
            ValueError: no losses, a loss of several elements, without a weight, or
                that does not depend on `input`; an input that is empty or has no batch
                axis; with input_only, a loss that reaches what produces `input` by a
                way around `input`; a probe whose layer does not lead to `input`.
            TypeError: a loss or an input is not a tensor.
        """
        rule = self._rule()
        check_losses(losses, rule.weights)
        # The last batch of a rank may be empty, and the other ranks wait for its call.
        ranks = has_ranks(self.process_group)
        inputs = check_inputs(input, self.per_batch_item, may_be_empty=ranks)
        if not torch.is_grad_enabled() or not any(
            loss.requires_grad for loss in losses.values()
        ):
            return self._evaluate(losses, rule)
        check_differentiable(losses, inputs)
        new = [name for name in losses if (name, len(inputs)) not in self._walked]
        if new:
            at_risk = new if self.input_only else []
            check_paths({name: losses[name] for name in at_risk}, inputs)
        call = self._training_call(rule)
        new_losses, self._state, scales = call.run(losses, inputs)
        self._metrics = self._stats(scales)
        if is_first_rank(self.process_group):
            self._share_watch.see(self._metrics, self._state, rule)
        self._walked.update((name, len(inputs)) for name in new)
        self._arm_probe()
        return dict(zip(losses, new_losses)), self.metrics

    @property
    def weights(self) -> Optional[Mapping[str, Weight]]:
        """The weights by name, each a number or a Ramp; set them between calls."""
        return None if self._weights is None else MappingProxyType(self._weights)

    @weights.setter
    def weights(self, weights: Optional[Mapping[str, Any]]) -> None:
        self._weights = None if weights is None else read_weights(weights)

    @property
    def metrics(self) -> Dict[str, float]:
        """The stats of the last call; empty before the first."""
        return dict(self._metrics)

    def reset(self) -> None:
        """Forget everything that was measured."""
        kind = AdaptiveAverages if self.adaptive_average else NormAverages
        empty = kind(self.ema_decay, self.update_every)
        self._state = BalancerState(empty, empty)
        self._metrics = {}
        self._share_watch = ShareWatch(self.adaptive_average)
        self._walked: Set[Tuple[str, int]] = set()
        self._arm_probe()

    def _arm_probe(self) -> None:
        """Have the probe note the layer's calls before a call that it is due in."""
        if self.probe is not None:
            self.probe.armed = self._state.probe_is_due(self.probe.every)

    def _rule(self) -> ScaleRule:
        weights = self._weights
        return ScaleRule(
            self.total_norm,
            self.epsilon,
            None if weights is None else weights_at(weights, self._state.calls),
            self.balance_grads,
            self.exact_total_norm,
            self._weighting,
        )

    def _training_call(self, rule: ScaleRule) -> TrainingCall:
        return TrainingCall(
            rule,
            self._state,
            self.per_batch_item,
            self.monitor,
            self.input_only,
            self.update_every,
            self.process_group,
            self.probe,
        )

    def _evaluate(
        self, losses: Mapping[str, Tensor], rule: ScaleRule
    ) -> Tuple[Dict[str, Tensor], Dict[str, float]]:
        scales = rule.held(losses, self._state)
        for name, weight in rule.weights_of(losses).items():
            if self._state.averages.get(name) is None:
                scales[name] = weight
        scaled = scaled_losses(losses.values(), [scales[name] for name in losses])
        self._metrics = {f"{name}_scale": scales[name] for name in losses}
        return dict(zip(losses, scaled)), self.metrics

    def _stats(self, scales: Mapping[str, float]) -> Dict[str, float]:
        names = list(scales) if self._weights is None else list(self._weights)
        state = self._state
        stats = loss_stats(names, scales, state.norms, state.averages)
        probed = self.probe.stats(names, state.probed) if self.probe else {}
        return {**stats, **state.monitored, **probed}

    def state_dict(self) -> Dict[str, Any]:
        """Return the averages and what else a resumed run needs, all plain numbers.

        It can be loaded by torch.load(weights_only=True).
        """
        return self._state.to_dict()

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise the ValueError that load_state_dict would raise, and load nothing."""
        self._state.from_dict(state)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Balancer":
        # A process group is a handle, which a copy shares.
        memo[id(self.process_group)] = self.process_group
        new = copy.copy(self)
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: a part is missing or damaged. The balancer stays as it was.
        """
        loaded = self._state.from_dict(state)
        self.reset()
        self._state = loaded

    def checkpoint_with(self, optimizer: torch.optim.Optimizer) -> None:
        """Save and load the averages along with an optimizer, under the key `balancer`.

        They ride in optimizer.state_dict(), which every trainer saves. A checkpoint
        without the key resets the balancer; an optimizer without a balancer ignores
        the key.

        Raises:
            ValueError: another balancer rides with this optimizer already.
        """
        save_with(optimizer, "balancer", self)
