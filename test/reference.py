"""What a balancer should do, once more: slow, plain, in NumPy's float64.

Written from the README's formulas; it has the gradients themselves, no graph, and
nothing of the package.
"""

import itertools
import math

import numpy as np

np.seterr(invalid="ignore")
# Below it a norm counts as zero.
SMALLEST = 1e-30


class Reference:
    """The options of a Balancer, and what it remembers.

    Gradients are given as {name: [an array or None for each input]}. rtol is what the
    rounding of the gradients under test may do to each element of one.
    """

    def __init__(
        self,
        rtol=0.0,
        total_norm=1.0,
        ema_decay=0.999,
        per_batch_item=True,
        epsilon=1e-12,
        weights=None,
        balance_grads=True,
        monitor=False,
        exact_total_norm=False,
        average="ema",
        update_every=1,
    ):
        self.total_norm, self.decay, self.epsilon = total_norm, ema_decay, epsilon
        self.per_batch_item, self.weights = per_batch_item, weights
        self.balance_grads, self.monitor = balance_grads, monitor
        self.exact, self.every = exact_total_norm, update_every
        self.adaptive = average == "adaptive"
        self.calls, self.norms, self.measured_at = 0, {}, {}
        self.averages, self.combined, self.monitored = {}, {}, {}
        self.rtol = rtol
        # What rounding may have done to the scales, to those of exact_total_norm more
        # the more the gradients oppose one another.
        self.scale_rtol = rtol
        self.total_norm_atol = 0.0

    def train(self, grads):
        """One call; returns the scales, the stats and Σ s_i g_i for each input."""
        due = any(
            self.calls - self.measured_at.get(name, -self.every) >= self.every
            for name in grads
        )
        for name in grads if due else ():
            self.norms[name] = self.norm(grads[name])
            self.measured_at[name] = self.calls
            self.average(self.averages, name, self.norms[name])
        if due and self.exact:
            plain = self.scales(grads, exact=False)
            norm = self.norm(combine(grads, plain))
            parts = sum(plain[name] * self.norms[name] for name in grads)
            if not norm <= 1e-6 * parts:  # they cancel one another
                self.average(self.combined, "norm", norm)
                if 0 < norm < math.inf:
                    blur = self.blur(grads, plain) / norm
                    self.scale_rtol = max(self.scale_rtol, self.rtol + blur)
        scales = self.scales(grads)
        gradient = combine(grads, scales)
        if due and self.monitor:
            self.monitored = self.cosines(grads)
            self.monitored["total_grad_norm"] = self.norm(gradient)
            self.total_norm_atol = self.blur(grads, scales)
        self.calls += 1
        return scales, {**self.stats(scales), **self.known(grads)}, gradient

    def known(self, present):
        """What was monitored, as far as it is of the losses of this call."""
        last = max(self.measured_at.values())
        together = {n for n, call in self.measured_at.items() if call == last}
        known = {}
        names = sorted(present if self.weights is None else self.weights)
        for pair in itertools.combinations(names, 2) if self.monitor else ():
            key = f"{pair[0]}_{pair[1]}_cosine"
            value = self.monitored.get(key) if together.issuperset(pair) else math.nan
            known[key] = value if set(pair) <= set(present) else 0.0
        if self.monitor:
            total = self.monitored["total_grad_norm"]
            known["total_grad_norm"] = total if together == set(present) else math.nan
        return known

    def evaluate(self, names):
        """A call without gradients: the scales."""
        scales = self.scales(names)
        for name in names:
            if name not in self.averages:
                scales[name] = self.weight(name)
        return scales

    def rows(self, arrays):
        """All inputs as one matrix of float64, with a row for each item."""
        flat = []
        for array in arrays:
            if array is not None:
                count = len(array) if self.per_batch_item else 1
                row = np.asarray(array).reshape(count, -1)
                flat += [row.real.astype(float), row.imag.astype(float)]
        return np.concatenate(flat, axis=1)

    def norm(self, arrays):
        return float(np.linalg.norm(self.rows(arrays), axis=1).mean())

    def blur(self, grads, scales):
        """What rounding may do to the norm of Σ s_i g_i: of elements, and of squares.

        The norm is the root of Σ_ij s_i s_j ⟨g_i, g_j⟩, whose terms may cancel.
        """
        sizes = [
            scales[n] * np.linalg.norm(self.rows(g), axis=1) for n, g in grads.items()
        ]
        parts = sum(np.broadcast_arrays(*sizes))
        norms = np.linalg.norm(self.rows(combine(grads, scales)), axis=1)
        squares = 1e-14 * parts**2
        roots = np.minimum(np.sqrt(squares), squares / np.maximum(norms, SMALLEST))
        return float((2 * self.rtol * parts + roots).mean())

    def average(self, averages, name, norm):
        if not math.isfinite(norm) or norm < SMALLEST:
            return
        if self.adaptive:
            averages[name] = self.followed(averages.get(name), norm)
            return
        total, fix = averages.get(name, (0.0, 0.0))
        for _ in range(self.every):  # the norm stands until the next measurement
            total, fix = self.decay * total + norm, self.decay * fix + 1
        averages[name] = total, fix

    def followed(self, last, norm):
        """An adaptive average, 1, its age and its tracking signal's two parts."""
        if last is None:
            return norm, 1.0, 1.0, 0.0, 0.0
        average, _, age, drift, spread = last
        error = (norm - average) / max(norm, average)
        error *= abs(error) >= 1e-6
        weight = math.sqrt(self.every)  # of a norm that stood for so many calls
        keep = 0.88**weight
        drift = keep * drift + (1 - keep) * error
        spread = keep * spread + (1 - keep) * abs(error)
        age += 1
        if abs(drift) > 0.75 * spread:
            age = max(2, 0.88 * age)
        rate = max(8 * weight / (age + 8 * weight - 1), 1 - self.decay**self.every)
        return (1 - rate) * average + rate * norm, 1.0, age, drift, spread

    def weight(self, name):
        return 1.0 if self.weights is None else self.weights[name]

    def scales(self, names, exact=True):
        whole = sum(self.weight(name) for name in names)
        scales = {}
        for name in names:
            if not self.balance_grads:
                scales[name] = self.weight(name)
            elif name not in self.averages:
                scales[name] = 0.0
            else:
                total, fix = self.averages[name][:2]
                share = self.weight(name) / whole
                scales[name] = self.total_norm * share / (self.epsilon + total / fix)
        if exact and self.combined:
            total, fix = self.combined["norm"][:2]
            factor = self.total_norm / (self.epsilon + total / fix)
            scales = {name: factor * scale for name, scale in scales.items()}
        return scales

    def stats(self, scales):
        names = scales if self.weights is None else self.weights
        norm = {n: self.norms[n] if n in scales else 0.0 for n in names}
        mean = dict.fromkeys(names, 0.0)
        for name in scales:
            if name in self.averages:
                mean[name] = self.averages[name][0] / self.averages[name][1]
        supply = {n: scales.get(n, 0.0) * norm[n] for n in names}
        stats = {}
        for name in names:
            stats[f"{name}_norm"] = norm[name]
            stats[f"{name}_ratio"] = mean[name] / (sum(mean.values()) or 1.0)
            stats[f"{name}_share"] = supply[name] / (sum(supply.values()) or 1.0)
            stats[f"{name}_scale"] = scales.get(name, 0.0)
        return stats

    def cosines(self, grads):
        cosines = {}
        names = sorted(grads if self.weights is None else self.weights)
        for a, b in itertools.combinations(names, 2):
            cosines[f"{a}_{b}_cosine"] = 0.0
            if a in grads and b in grads:
                shape = [x if y is None else y for x, y in zip(grads[a], grads[b])]
                x, y = (self.filled(grads[name], shape) for name in (a, b))
                sizes = np.linalg.norm(x), np.linalg.norm(y)
                if all(sizes):
                    cosines[f"{a}_{b}_cosine"] = float(x @ y / sizes[0] / sizes[1])
        return cosines

    def filled(self, arrays, shape):
        """All inputs as one vector, with zeros like `shape` for those that are None."""
        zeros = [None if like is None else np.zeros_like(like) for like in shape]
        full = [z if array is None else array for array, z in zip(arrays, zeros)]
        return self.rows(full).ravel()


def combine(grads, scales):
    """Σ s_i g_i for each input, None for one that no loss depends on."""
    sums = []
    for column in zip(*grads.values()):
        parts = [
            scale * grad
            for scale, grad in zip((scales[name] for name in grads), column)
            if grad is not None
        ]
        sums.append(sum(parts) if parts else None)
    return sums
