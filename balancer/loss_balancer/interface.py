"""The balancer as its users see it."""

import copy
import threading
import warnings
from typing import (
    Any,
    Dict,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import torch
from torch import Tensor

from balancer._losses.checks import (
    check_inputs,
    check_losses,
    check_requires_grad,
    check_surroundings,
    check_weights,
    losses_on,
    trained,
)
from balancer._losses.returned import scaled_losses
from balancer._losses.stats import OUTLIER, check_keys, loss_stats, pair_stats
from balancer._losses.watch import ShareWatch
from balancer._norms.ranks import has_ranks, is_first_rank
from balancer._scales.options import Options
from balancer._scales.rule import ScaleRule
from balancer._scales.sections import read_section
from balancer._scales.state import BalancerState
from balancer.loss_balancer.call import run_call
from balancer.loss_balancer.checkpoint import save_with
from balancer.loss_balancer.settings import Settings
from balancer.quantities.probe import GradientProbe


class Balancer(Settings):
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
            not in it is refused, one that is a constant zero is off. A weight that
            changes is a Ramp, or {"start": 0, "end": 3, "from_step": 1000, "to_step":
            2000}, in steps that are calls in training.
        balance_grads: False scales each loss by its weight alone, and still measures.
        monitor: whether to add the cosine of each pair of gradients and the norm of
            the balanced gradient to the stats.
        exact_total_norm: whether total_norm is the average norm of the balanced
            gradient itself. AudioCraft's is the sum of the losses' norms, which is more
            than that of their sum unless all pull the same way.
        weighting: a weighting of TorchJD for losses that conflict: its name, e.g.
            "upgrad", a section with its arguments, e.g. {"name": "cagrad", "c": 0.5},
            or an object. It gets the Gram matrix of g_i / (epsilon + a_i) and the
            preferences w_i / Σ_j w_j, and its coefficients take their place.
        average: "ema", or "adaptive" for averages that reach back only as far as the
            norms allow, so that shares stay on target while norms drift; ema_decay
            then is the longest memory.
        outliers: "keep" takes each norm into its average, as AudioCraft does. "skip"
            leaves out a norm that is far from its average, unless the next two are on
            the same side, and bounds a measured call's scale, so that no loss has more
            than 3 times its due. Then one bad batch does not switch a loss off.
        input_only: True returns losses that carry gradient to `input` and nowhere
            else, so a discriminator gets none in the generator's turn. False returns
            s_i·l_i on the whole graph, for losses with parameters of their own.
        update_every: N, measure the norms on every Nth call. In between the averages
            are held, and with input_only the losses are walked once, jointly. "auto"
            measures on each call while norms are new or drift, and ever more rarely
            where they stand still, at most on every 16th; "auto 32" on every 32nd. A
            call after an outlier that was skipped measures in any case.
        process_group: the ranks that share a batch, of torch.distributed; None takes
            all. With pipeline or tensor parallelism, those of the data parallelism.
        probe: adds quantities of each loss's per-sample gradients to the stats, as
            `{name}_norm_test`. The attribute `probe` may be set later, too.

    Each argument is an attribute, too, which can be set between calls: it is checked as
    here, and what was averaged goes on under it. Any real number will do, of NumPy or a
    tensor without axes too.

    One balancer may be called by several threads, one after the other; each call is one
    of its steps.

    Raises:
        ValueError: an argument is out of its range.
        TypeError: an argument is of another type.

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
        weighting: Any = None,
        average: str = "ema",
        outliers: str = "keep",
        input_only: bool = True,
        update_every: Union[int, str] = 1,
        process_group: Any = None,
        probe: Optional[GradientProbe] = None,
    ):
        self._options = Options(
            total_norm=total_norm,
            ema_decay=ema_decay,
            per_batch_item=per_batch_item,
            epsilon=epsilon,
            weights=weights,
            balance_grads=balance_grads,
            monitor=monitor,
            exact_total_norm=exact_total_norm,
            weighting=weighting,
            average=average,
            outliers=outliers,
            input_only=input_only,
            update_every=update_every,
            process_group=process_group,
        )
        self._state = BalancerState.new(self._options)
        self._metrics: Dict[str, float] = {}
        self._watch = ShareWatch()
        self._lock = threading.RLock()
        self.probe = probe

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
            The losses, each of its shape and dtype (a float16 loss comes back in
            float32), ready to be summed; and the stats,
            floats, for each loss `name` (with `weights` for each name in them, zero
            where the loss is not in this call):
            `{name}_norm` n_i as last measured; `{name}_ratio` a_i / Σ_j a_j, its share
            of the gradient if nothing were balanced; `{name}_share`
            s_i n_i / Σ_j s_j n_j, its share of the balanced gradient, whose target is
            w_i / Σ_j w_j; `{name}_scale` s_i. With outliers="skip" also
            `{name}_outlier`, 1 where a norm was left out or the loss held back. With
            monitor also `{a}_{b}_cosine` for each pair, and `total_grad_norm`, the norm
            of Σ_i s_i g_i, both nan where they are not known of the losses in this
            call. With a probe also `{name}_{quantity}`, as last measured, nan before.

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
        with self._lock:
            return self._call(losses, input)

    def _call(
        self, losses: Mapping[str, Tensor], input: Union[Tensor, Sequence[Tensor]]
    ) -> Tuple[Dict[str, Tensor], Dict[str, float]]:
        options = self._options
        check_losses(losses, options.weights)
        # The last batch of a rank may be empty, and the other ranks wait for its call.
        ranks = has_ranks(options.process_group)
        inputs = check_inputs(input, options.per_batch_item, may_be_empty=ranks)
        rule = ScaleRule(options, self._state.calls)
        if not trained(losses):
            return self._evaluate(losses, rule)
        check_surroundings()
        check_requires_grad(inputs)
        on = losses_on(losses, rule.weights)
        if not ranks:  # other ranks may bring what this one has not
            check_weights(on, rule.weights)
        new_losses, scales, state = run_call(on, inputs, rule, self._state, self._probe)
        metrics = self._stats(scales, state)
        watch = self._watch
        if is_first_rank(options.process_group):
            watch, message = watch.after(metrics, state, rule)
            if message:
                # Behind _call, __call__ and torch's two frames that keep compilers out.
                warnings.warn(message, stacklevel=5)
        self._state, self._metrics, self._watch = state, metrics, watch
        self._arm_probe()
        return {name: new_losses.get(name, losses[name]) for name in losses}, {
            **metrics
        }

    def _evaluate(
        self, losses: Mapping[str, Tensor], rule: ScaleRule
    ) -> Tuple[Dict[str, Tensor], Dict[str, float]]:
        scales = rule.held(losses, self._state)
        for name, weight in rule.weights_of(losses).items():
            if self._state.averages.get(name) is None:
                scales[name] = weight
        tensors = {n: loss for n, loss in losses.items() if isinstance(loss, Tensor)}
        self._metrics = {f"{name}_scale": scales[name] for name in losses}
        return {**losses, **scaled_losses(tensors, scales)}, self.metrics

    def _stats(
        self, scales: Mapping[str, float], state: BalancerState
    ) -> Dict[str, float]:
        options, probe = self._options, self._probe
        names = list(scales if options.weights is None else options.weights)
        quantities = tuple(probe.quantities) if probe else ()
        if state.averages.skips_outliers:
            quantities += (OUTLIER,)
        check_keys(tuple(names), options.monitor, quantities)
        stats = loss_stats(names, scales, state)
        if options.monitor:
            stats.update(pair_stats(names, scales, state))
        if probe:
            stats.update(probe.stats(names, state.probed))
        return stats

    @property
    def metrics(self) -> Dict[str, float]:
        """The stats of the last call; empty before the first."""
        return dict(self._metrics)

    def reset(self) -> None:
        """Forget everything that was measured."""
        self._state = BalancerState.new(self._options)
        self._metrics = {}
        self._watch = ShareWatch()
        self._arm_probe()

    def state_dict(self) -> Dict[str, Any]:
        """Return the averages and what else a resumed run needs, all plain numbers.

        It can be loaded by torch.load(weights_only=True).
        """
        return self._state.to_dict()

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise the ValueError that load_state_dict would raise, and load nothing."""
        self._state.from_dict(state)

    def __getstate__(self) -> Dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_lock"}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Balancer":
        # A process group is a handle, which a copy shares.
        memo[id(self.process_group)] = self.process_group
        new = copy.copy(self)
        vars(new).update(copy.deepcopy(self.__getstate__(), memo))
        return new

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Raises:
            ValueError: a part is missing or damaged. The balancer stays as it was.
        """
        loaded = self._state.from_dict(state).under(self._options)
        self.reset()
        self._state = loaded
        self._arm_probe()

    def checkpoint_with(self, optimizer: Any) -> None:
        """Save and load the averages along with an optimizer.

        They ride in optimizer.state_dict(), which every trainer saves: as a text, the
        option `balancer` of the first parameter group. torch.distributed.checkpoint
        keeps them too. A checkpoint without them resets the balancer, one that was
        loaded before is read now. An optimizer without a balancer loads a checkpoint
        that has them, and does not read them.

        Args:
            optimizer: one of torch.optim, or what wraps one and has it as its
                `optimizer`, as those of Accelerate and Lightning.

        Raises:
            TypeError: there is no optimizer of torch.optim.
            ValueError: another balancer rides with this optimizer already, or what
                wraps it saves a state dict without them.
        """
        save_with(optimizer, "balancer", self)
