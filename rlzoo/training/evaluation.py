"""Held-out evaluation: sampled and greedy answers, judged by one of the rewards."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric

from rlzoo.errors import UserError, nearest
from rlzoo.models.base import Policy
from rlzoo.rewards.runner import RewardRunner
from rlzoo.rollout.base import Sampler, keep_pace
from rlzoo.training.experience import judge
from rlzoo.training.held_out_metrics import pass_at_k
from rlzoo.training.settings import Evaluation
from rlzoo.types import Prompts, Rewards, SamplingParams


class Evaluator(nn.Module):
    """Answers held-out prompts k times at a temperature and once greedily.

    Args:
        settings: k, temperature and which reward judges.
        runner: The rewards.
    """

    def __init__(self, settings: Evaluation, runner: RewardRunner) -> None:
        super().__init__()
        names = runner.names
        judge = settings.accuracy or names[0]
        if judge not in names:
            raise UserError(
                f"evaluation.accuracy '{judge}' is not among the rewards; {nearest(judge, names)}"
            )
        self.settings, self.runner, self.judge = settings, runner, names.index(judge)
        self.average, self.greedy, self.reward = MeanMetric(), MeanMetric(), MeanMetric()
        self.passed = MeanMetric().set_dtype(torch.float64)  # shares that float32 rounds

    def update(
        self, policy: Policy, sampler: Sampler, sampling: SamplingParams, prompts: Prompts
    ) -> None:
        """Answer and judge a batch of held-out prompts; an empty one only keeps ranks in step.

        Args:
            policy: As it is now.
            sampler: Draws the answers.
            sampling: Length and filters, those of training.
            prompts: This rank's part of a batch.
        """
        if not len(prompts):
            for _ in ("sampled", "greedy"):
                keep_pace(policy, sampler, sampling)
            return
        k = self.settings.samples
        warm = replace(sampling, temperature=self.settings.temperature)
        rewards = self._answer(policy, sampler, prompts, k, warm)
        correct = self._correct(rewards).view(len(prompts), k)
        self.average.update(correct.float())
        self.passed.update(pass_at_k(correct, k))
        if rewards.valid.any():
            self.reward.update(rewards.totals[rewards.valid])
        cold = replace(sampling, temperature=0.0, top_p=1.0, top_k=0)
        best = self._answer(policy, sampler, prompts, 1, cold)
        self.greedy.update(self._correct(best).float())

    def compute(self) -> dict[str, float]:
        """Return the metrics over all ranks and start anew."""
        k = self.settings.samples
        metrics = {
            "val/accuracy": self.average,
            f"val/pass@{k}": self.passed,
            "val/greedy": self.greedy,
            "val/reward": self.reward,
        }
        values = {name: float(metric.compute()) for name, metric in metrics.items()}
        for metric in metrics.values():
            metric.reset()
        return values

    def _answer(
        self,
        policy: Policy,
        sampler: Sampler,
        prompts: Prompts,
        samples: int,
        params: SamplingParams,
    ) -> Rewards:
        rollouts = sampler.sample(policy, prompts, samples, params, self.settings.seed)
        return judge(self.runner, rollouts)

    def _correct(self, rewards: Rewards) -> Tensor:
        return torch.tensor(
            [
                row[self.judge] is not None and (row[self.judge] or 0.0) >= 1
                for row in rewards.table
            ],
            device=rewards.totals.device,
        )
