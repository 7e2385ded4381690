"""The tracker of experts: it records, replays, balances and measures the routing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rlzoo import distributed
from rlzoo.models.base import Policy
from rlzoo.training.minibatches import MicroBatch, Minibatch
from rlzoo.types import Rollouts
from rlzoo.types.expert_choices import (
    RouterSettings,
    RouterSizes,
    Routing,
    RoutingRecord,
    differing,
)


@dataclass
class Tally:
    """Sums over the tokens of an iteration, (L,) or (L, E) or 0-d, float64.

    Attributes:
        sums: By name.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, value: Tensor) -> None:
        """Add to a sum."""
        value = value.detach().double()
        self.sums[name] = self.sums[name] + value if name in self.sums else value

    def over_ranks(self) -> dict[str, Tensor]:
        """Return the sums over all ranks, on the CPU; every rank must have the same names."""
        names = sorted(self.sums)
        if not names:
            return {}
        flat = torch.cat([self.sums[name].flatten() for name in names])
        parts = torch.split(
            distributed.sum_over_ranks(flat).cpu(), [self.sums[name].numel() for name in names]
        )
        return {n: part.view(self.sums[n].shape) for n, part in zip(names, parts, strict=True)}


@dataclass(frozen=True)
class Balance:
    """What the router's losses of one optimizer step need to know before its first micro-batch.

    Attributes:
        tokens: 0-d float64, real tokens over all micro-batches and ranks.
        load: (L, E) float64, tokens per expert over the same, or None without a balance loss.
    """

    tokens: Tensor
    load: Tensor | None


def router_losses(
    routing: Routing, balance: Balance, settings: RouterSettings
) -> dict[str, Tensor]:
    """Return a micro-batch's shares of the router's losses of its optimizer step.

    ``aux = E / L sum_l sum_e f_le P_le`` (Switch Transformer, arXiv 2101.03961, eq. 4-6, the mean
    over layers): ``f`` counts the step's tokens sent to an expert, per token, and sums to k over a
    layer; ``P`` is the mean of the router's distribution, from raw logits, over the same tokens.
    ``z = 1 / L sum_l mean_t logsumexp(logits)^2`` (ST-MoE, arXiv 2202.08906, eq. 5).

    Both are sums over tokens once ``f`` is given, and ``f`` is the same for all micro-batches and
    ranks of the step, so shares add up to the same loss and gradient however the step is cut.

    Args:
        routing: Of the micro-batch.
        balance: Of the step.
        settings: Weights of the terms.

    Returns:
        0-d, by name: ``aux`` and ``z`` before their weights, as far as their weights are not 0.
    """
    found: dict[str, Tensor] = {}
    if settings.aux_coefficient and balance.load is not None:
        assert routing.probabilities is not None
        layers, experts = routing.probabilities.shape
        share = balance.load / balance.tokens.clamp_min(1)
        mean = routing.probabilities / balance.tokens.clamp_min(1)
        found["aux"] = experts / layers * (share * mean).sum()
    if settings.z_coefficient:
        assert routing.log_normalizer is not None
        found["z"] = routing.log_normalizer.mean() / balance.tokens.clamp_min(1)
    return found


class ExpertTracker:
    """Follows the routing of a policy through the updates of an iteration. No Lightning.

    Args:
        settings: Of the policy.
        sizes: Layers and experts.
        updates: Optimizer steps per iteration.
    """

    def __init__(self, settings: RouterSettings, sizes: RouterSizes, updates: int) -> None:
        self.settings, self.sizes, self.updates = settings, sizes, updates
        self.tally = Tally()
        self.load: Tensor | None = None
        self._step: tuple[Minibatch, Balance] | None = None
        self._sampled: Tensor | None = None

    def begin(self, rollouts: Rollouts) -> RoutingRecord | None:
        """Start an iteration.

        Args:
            rollouts: This rank's answers.

        Returns:
            A record to be filled, or None where nothing will read it.
        """
        self.tally, self._step, self._sampled = Tally(), None, rollouts.routing
        if self.updates == 1 and not self.settings.in_loss and self._sampled is None:
            return None
        prompts = [len(rollouts.prompt(row).token_ids) for row in range(len(rollouts))]
        lengths = rollouts.lengths() + torch.tensor(prompts, device=rollouts.mask.device)
        replayed = self.settings.replay != "off"
        record = RoutingRecord.blank(lengths, self.sizes, replayed=replayed)
        size = record.experts.nbytes
        if self._sampled is not None:
            size += self._sampled.nbytes
        if self.settings.replay == "rollout":
            assert self._sampled is not None
            sampled = self._sampled[:, : record.experts.shape[1]]
            record, size = replace(record, experts=sampled), self._sampled.nbytes
            record.known.fill_(True)
        self.tally.add("bytes", lengths.new_tensor(size))
        return record

    def learn(
        self,
        record: RoutingRecord | None,
        minibatch: Minibatch,
        micro: MicroBatch,
        routing: Routing,
        *,
        on_policy: bool,
    ) -> Tensor:
        """Take note of a training forward, and return what the routers add to its loss.

        Args:
            record: The iteration's.
            minibatch: The optimizer step.
            micro: The rows.
            routing: What the routers did with them.
            on_policy: Whether the weights are still those that sampled.

        Returns:
            0-d share of the step's loss, to be summed over micro-batches and ranks.
        """
        scale = 0.0 if micro.padding else 1.0
        loss = routing.tokens.new_zeros(())
        if record is not None:
            if self.settings.in_loss:
                terms = router_losses(routing, self._balance(record, minibatch), self.settings)
                for name, term in terms.items():
                    self.tally.add(name, scale * term)
                    loss = loss + scale * self.settings.coefficient(name) * term
            if not on_policy:
                self._compare(record, micro.rows, routing, scale)
            else:
                self._compare_with_sampler(record, micro.rows, routing, scale)
                if not micro.padding:
                    record.keep(micro.rows, routing.chosen)
        if routing.load is not None and routing.entropy is not None:
            self.tally.add("tokens", scale * routing.tokens)
            self.tally.add("load", scale * routing.load)
            self.tally.add("entropy", scale * routing.entropy)
        return loss.float()

    def _balance(self, record: RoutingRecord, minibatch: Minibatch) -> Balance:
        """Count the step's tokens and their recorded experts, once, over all ranks."""
        if self._step is None or self._step[0] is not minibatch:
            parts = [micro.rows for micro in minibatch.micro_batches if not micro.padding]
            rows = torch.cat(parts) if parts else minibatch.rows[:0]
            load = record.load(rows)
            tokens = record.lengths[rows].sum().double()
            total = distributed.sum_over_ranks(torch.cat([tokens[None], load.flatten()]))
            self._step = minibatch, Balance(total[0], total[1:].view(load.shape))
            self.tally.add("steps", tokens.new_ones(()))
        return self._step[1]

    def _compare(self, record: RoutingRecord, rows: Tensor, routing: Routing, scale: float) -> None:
        """Count the expert slots that differ from the record, layer by layer."""
        if not self.settings.statistics:
            return
        width = routing.chosen.shape[1]
        real = record.real(rows, width)[..., None]
        self.tally.add("slots", scale * real.sum() * self.sizes.top_k)
        found = {"free": routing.chosen, "used": routing.used}
        for name, experts in found.items():
            if experts is not None:
                changed = differing(experts, record.experts[rows, :width])
                self.tally.add(name, scale * torch.where(real, changed, 0).sum((0, 1)))

    def _compare_with_sampler(
        self, record: RoutingRecord, rows: Tensor, routing: Routing, scale: float
    ) -> None:
        """Count the expert slots, and the sets, that differ from those of the sampler."""
        if self._sampled is None or not self.settings.statistics:
            return
        width = routing.chosen.shape[1]
        real = record.real(rows, width)[..., None]
        changed = differing(routing.chosen, self._sampled[rows, :width]).where(real, 0)
        self.tally.add("sampled", scale * real.sum())
        self.tally.add("sampled_slots", scale * changed.sum((0, 1)) / self.sizes.top_k)
        self.tally.add("sampled_sets", scale * (changed > 0).sum((0, 1)))

    def finish(self) -> dict[str, float]:
        """Return the iteration's metrics, the same on every rank; every rank must call it."""
        sums = self.tally.over_ranks()
        found: dict[str, float] = {}
        if "load" in sums and sums["tokens"] > 0:
            self.load = load = sums["load"]
            found |= self._by_layer("moe/load_max", load.amax(-1) / load.mean(-1))
            found |= self._by_layer("moe/unused_experts", (load == 0).double().sum(-1))
            found |= self._by_layer("moe/router_entropy", sums["entropy"] / sums["tokens"])
        if "slots" in sums and sums["slots"] > 0:
            free, used = sums["free"] / sums["slots"], sums.get("used")
            found |= self._by_layer("moe/volatility_free", free)
            after = free if used is None else used / sums["slots"]
            found |= self._by_layer("moe/volatility", after)
        if "sampled" in sums and sums["sampled"] > 0:
            slots, sets = sums["sampled_slots"], sums["sampled_sets"]
            found |= self._by_layer("moe/rollout_volatility", slots / sums["sampled"])
            found["moe/rollout_changed"] = float((sets / sums["sampled"]).mean())
        if "aux" in sums:
            found["moe/aux_loss"] = float(sums["aux"] * distributed.world_size() / sums["steps"])
        if "z" in sums:
            found["moe/z_loss"] = float(sums["z"] * distributed.world_size() / sums["steps"])
        if "bytes" in sums:
            found["moe/record_bytes"] = float(sums["bytes"])
        return found

    def _by_layer(self, name: str, values: Tensor) -> dict[str, float]:
        each = zip(self.sizes.layers, values.tolist(), strict=True)
        return {name: float(values.mean()), **{f"{name}/layer_{i}": value for i, value in each}}


def follow(policy: Policy, updates: int) -> ExpertTracker | None:
    """Return what follows a policy's routing, or None where nothing is to be followed.

    Args:
        policy: Loaded.
        updates: Optimizer steps per iteration.
    """
    sizes = policy.router_sizes
    if sizes is None or not policy.router.watched:
        return None
    return ExpertTracker(policy.router, sizes, updates)
