"""The commands ``rlzoo fit`` and ``rlzoo validate``: Lightning's command line, with checks."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from rlzoo.callbacks import CollapseMonitor, IterationCheckpoint, Report
from rlzoo.cli.jsonargparse_internals import keys_of, parser_of
from rlzoo.cli.messages import explain
from rlzoo.errors import UserError
from rlzoo.strategies.deepspeed.checks import check_installed
from rlzoo.strategies.fsdp2 import check_sharding
from rlzoo.training.checkpoint import check_file
from rlzoo.training.checks import check_precision
from rlzoo.training.data import PromptDataModule
from rlzoo.training.module import RLModule


def fit(args: list[str]) -> None:
    """Train a policy."""
    lightning_command(["fit", *args])


def validate(args: list[str]) -> None:
    """Answer held-out prompts and say how many answers are right."""
    lightning_command(["validate", *args])


class RLCLI(LightningCLI):
    """LightningCLI with rlzoo's links, defaults and checks."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what belongs to neither trainer, model nor data."""
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)
        parser.add_argument(
            "--threads",
            type=int,
            default=0,
            help="Torch threads; 1 is fastest for tiny models, 0 leaves torch's own choice.",
        )
        parser.add_lightning_class_args(CollapseMonitor, "collapse")
        parser.add_lightning_class_args(Report, "report")
        parser.add_lightning_class_args(IterationCheckpoint, "checkpoint")

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the trainer methods that are commands here."""
        ours = ("fit", "validate")
        return {k: v for k, v in LightningCLI.subcommands().items() if k in ours}

    def _parse_ckpt_path(self) -> None:
        """Take no settings from the checkpoint's hyperparameters: rlzoo stores none there."""

    def before_instantiate_classes(self) -> None:
        """Refuse what cannot run here, and set the threads."""
        config = self.config[str(self.subcommand)]
        if config.threads < 0:
            raise UserError(f"threads must be >= 0, got {config.threads}")
        if config.threads:
            torch.set_num_threads(config.threads)
        check_precision(config.trainer.precision)
        check_optimization(config.trainer)
        check_strategy(config.trainer)
        path = config.get("ckpt_path")
        if path and path not in ("best", "last", "hpc", "registry") and not Path(path).exists():
            raise UserError(f"ckpt_path '{path}' does not exist; a run starts anew without it")
        if path and Path(path).exists() and "deepspeed" not in str(config.trainer.strategy).lower():
            check_file(path)  # only sharded checkpoints are folders
        if config.trainer.enable_progress_bar is None:
            config.trainer.enable_progress_bar = sys.stdout.isatty()

    def instantiate_classes(self) -> None:
        """Instantiate, and hand the resolved configuration to the module, for its checkpoints."""
        super().instantiate_classes()
        command = str(self.subcommand)
        config = parser_of(self, command).dump(self.config[command], skip_link_targets=False)
        self.model.carry(config)


def check_optimization(trainer: Any) -> None:
    """Refuse trainer options that manual optimization takes over.

    Raises:
        UserError: Naming the option of rlzoo.
    """
    if trainer.gradient_clip_val:
        raise UserError(
            f"trainer.gradient_clip_val {trainer.gradient_clip_val} cannot act here; set "
            "model.max_grad_norm"
        )
    if trainer.accumulate_grad_batches != 1:
        raise UserError(
            f"trainer.accumulate_grad_batches {trainer.accumulate_grad_batches} cannot act here; "
            "set model.micro_batch_tokens, which changes memory and not the result"
        )


def check_strategy(trainer: Any) -> None:
    """Refuse strategies that cannot run, or not as rlzoo trains.

    Raises:
        UserError: With the remedy.
    """
    strategy = trainer.strategy
    name = strategy if isinstance(strategy, str) else str(strategy.get("class_path", ""))
    check_sharding(strategy)
    if name.endswith("DeepSpeedExpertParallelStrategy"):
        check_installed()
    if name.startswith("deepspeed") or name.endswith(".DeepSpeedStrategy"):
        raise UserError(
            f"trainer.strategy {name} would neither clip nor accumulate under manual optimization; "
            "use class_path rlzoo.strategies.DeepSpeedExpertParallelStrategy"
        )


def lightning_command(args: list[str], kind: type[RLCLI] = RLCLI) -> RLCLI:
    """Run fit or validate.

    Args:
        args: The command line after ``rlzoo``.
        kind: What is done with it.

    Returns:
        What ran.

    Raises:
        UserError: If the configuration is refused.
    """
    settings = {"exit_on_error": False, "allow_abbrev": False}
    cli: list[RLCLI] = []

    class Recorded(kind):  # type: ignore[valid-type, misc]
        def setup_parser(self, *arguments: Any, **named: Any) -> None:
            cli.append(self)
            super().setup_parser(*arguments, **named)

    sys.argv = [sys.argv[0], *args]
    try:
        Recorded(
            RLModule,
            PromptDataModule,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},  # a resumed run may go on in its folder
            parser_kwargs={**settings, **{name: dict(settings) for name in RLCLI.subcommands()}},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )
    except argparse.ArgumentError as error:
        keys = keys_of(parser_of(cli[0], args[0])) if cli else []
        raise UserError(broken_file(args) + explain(str(error), keys)) from error
    return cli[0]


def broken_file(args: list[str]) -> str:
    """Return the name of the first configuration file that is not YAML, for a message."""
    files = [value for option, value in itertools.pairwise(args) if option == "--config"]
    files += [arg.partition("=")[2] for arg in args if arg.startswith("--config=")]
    for file in files:
        try:
            yaml.safe_load(Path(file).read_text())
        except yaml.YAMLError:
            return f"{file}: "
        except OSError:
            continue
    return ""
