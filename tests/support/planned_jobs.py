"""Policies and jobs to plan."""

from dataclasses import replace

from tiny_models import CHARACTERS, DENSE, MOE

from rlzoo.models import DensePolicy, MoEPolicy
from rlzoo.plan.anatomy import measure
from rlzoo.plan.job import Job, precision_of
from rlzoo.plan.sharding import Sharding


def policy_of(family, **options):
    kind, table = (MoEPolicy, MOE) if family in MOE else (DensePolicy, DENSE)
    return kind(config=table[family], characters=CHARACTERS, **options)


def job(**changes):
    anatomy = measure(DensePolicy(path="Qwen/Qwen3-8B"))
    given = ("32-true", "bfloat16", 2)
    base = Job(
        anatomy=anatomy,
        sharding=Sharding("single", 1),
        precision=precision_of(*given, "single"),
        given=given,
        optimizer="AdamW",
        checkpointing=True,
        critic=(0, 0),
        reference=False,
        prompts=4,
        group_size=8,
        answer_tokens=1000,
        prompt_tokens=500,
        micro_batch_tokens=16384,
        concurrent=32,
        epochs=1,
        passes_before=0,
        updates=1,
    )
    return replace(base, **changes)
