"""What ESPnet computes in a generator turn, kept as it goes by."""

from typing import Any, Callable, Dict, List, Mapping, Tuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.hooks import RemovableHandle

from balancer._gradients.precision import float32_at_least

# A logarithm stands in them, whose floor of 1e-10 is zero in float16.
IN_FLOAT32 = ("mel_loss",)


class WatchedTurn:
    """The balanced losses of a generator turn and the outputs that they are taken of.

    ESPnet's own forward runs inside `with`. A forward hook on each loss module keeps
    its results with their graphs and hands on copies that have none. So ESPnet
    computes its sum, its stats and its factors as ever, and its `loss` has gradient of
    what is not balanced alone. What the discriminator and the loss modules are given,
    and requires grad, is an output of the generator.

    Leaving `with`, by an exception too, takes all hooks away. A watch serves one turn.

    Args:
        net: ESPnet's codec, TTS or singing module, with a `discriminator`.
        losses: name → the loss module's name in `net`. A module that returns several
            losses in a turn, or is called several times, has as many names, which its
            results take in their order.

    Raises:
        AttributeError: the net has no such module.

    Example:
        >>> import torch
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.generator = torch.nn.Linear(4, 4)
        ...         self.discriminator = torch.nn.Linear(4, 1)
        ...         self.mel_loss = torch.nn.L1Loss()
        ...     def forward(self, x):
        ...         y = self.generator(x)
        ...         return 45 * self.mel_loss(y, x) + self.generator.bias.square().sum()
        >>> net = Net()
        >>> with WatchedTurn(net, {"mel": "mel_loss"}) as turn:
        ...     loss = net(torch.randn(2, 4))
        >>> losses, rest = turn.split(loss)
        >>> list(losses), len(turn.outputs)
        (['mel'], 1)
    """

    def __init__(self, net: nn.Module, losses: Mapping[str, str]):
        self.outputs: List[Tensor] = []
        self._net = net
        self._losses = losses
        self._watched = {
            name: net.get_submodule(name)
            for name in ("discriminator", *dict.fromkeys(losses.values()))
        }
        self._kept: Dict[str, Tensor] = {}
        self._handed: Dict[str, Tensor] = {}
        self._scores: List[Tensor] = []  # of the discriminator, held for their ids
        self._handles: List[RemovableHandle] = []
        self._depth = 0  # of the loss modules that run within one another

    def __enter__(self) -> "WatchedTurn":
        self._watch("discriminator", self._see_scores)
        for attribute in dict.fromkeys(self._losses.values()):
            if attribute in IN_FLOAT32:
                self._run_in_float32(self._watched[attribute])
            self._watch(attribute, self._keeper(attribute))
        return self

    def __exit__(self, *_: Any) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._scores.clear()

    def _watch(self, attribute: str, hook: Callable[..., Any]) -> None:
        module = self._watched[attribute]
        self._handles += [
            # First, before what another pre-hook makes of the arguments.
            module.register_forward_pre_hook(
                self._see_outputs, prepend=True, with_kwargs=True
            ),
            module.register_forward_hook(hook),
        ]

    def _see_outputs(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._depth += module is not self._watched["discriminator"]
        known = {id(tensor) for tensor in [*self.outputs, *self._scores]}
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                if id(tensor) not in known:
                    self.outputs.append(tensor)
                    known.add(id(tensor))

    def _see_scores(self, module: nn.Module, args: Any, result: Any) -> None:
        leaves = tree_leaves(result)
        self._scores += [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def _keeper(self, attribute: str) -> Callable[..., Any]:
        names = [name for name, of in self._losses.items() if of == attribute]
        left = list(names)

        def keep(result: Tensor) -> Tensor:
            if not result.requires_grad:  # computed for a report
                return result
            if not left:
                raise ValueError(
                    f"{attribute} gave more losses in this turn than it has names in "
                    f"balancer_conf.losses, {names}: name each, in their order, as in "
                    f"{{{names[0]}: {attribute}, {names[0]}_2: {attribute}}}"
                )
            name = left.pop(0)
            self._kept[name] = result
            self._handed[name] = result.detach().requires_grad_()
            # A copy, since ESPnet may go on with it in place.
            return self._handed[name].clone()

        def hook(module: nn.Module, args: Any, result: Any) -> Any:
            self._depth -= 1
            if self._depth:
                raise ValueError(
                    f"{attribute} runs within another module of balancer_conf.losses: "
                    "name one of the two"
                )
            return tree_map_only(Tensor, keep, result)

        return hook

    def _run_in_float32(self, module: nn.Module) -> None:
        """Have a module run in float32, whatever autocast says."""
        entered: List[Any] = []

        def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            entered.append(torch.autocast(tensors[0].device.type, enabled=False))
            entered[-1].__enter__()
            return tree_map_only(Tensor, float32_at_least, (args, kwargs))

        def leave(*_: Any) -> None:
            if entered:  # no other pre-hook failed before
                entered.pop().__exit__(None, None, None)

        self._handles += [
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.register_forward_hook(leave, always_call=True),
        ]

    def split(self, loss: Tensor) -> Tuple[Dict[str, Tensor], Tensor]:
        """Return the balanced losses and what is left of ESPnet's loss.

        Args:
            loss: what ESPnet's forward returned, one element.

        Returns:
            The losses by name, times the factors that ESPnet gave them; one that it
            left out is left out. And `loss`, less the values of these.

        Raises:
            ValueError: no loss module ran, or a loss of the outputs ran past them.
        """
        if not self._handed:
            raise ValueError(
                f"none of the loss modules {sorted(set(self._losses.values()))} gave a "
                f"loss in this turn: {self._modules()}"
            )
        found = torch.autograd.grad(
            loss,
            [*self._handed.values(), *self.outputs],
            torch.ones_like(loss),
            retain_graph=True,
            allow_unused=True,
        )
        factors = dict(zip(self._handed, found))
        if any(grad is not None for grad in found[len(factors) :]):
            raise ValueError(
                "a loss of the generator's output is in ESPnet's sum but not among "
                f"the balanced losses {list(self._losses)}: compute it by a module of "
                "its own and name that in balancer_conf.losses, {name: module}; "
                + self._modules()
            )
        losses = {
            name: self._kept[name] * factor
            for name, factor in factors.items()
            if factor is not None
        }
        return losses, loss - sum(loss.detach() for loss in losses.values())

    def _modules(self) -> str:
        return f"{type(self._net).__name__} has {loss_modules(self._net)}"


def loss_modules(net: nn.Module) -> List[str]:
    """Return the names of the modules of a net, but its generator and discriminator."""
    names = [name for name, _ in net.named_children()]
    return [name for name in names if name not in ("generator", "discriminator")]
