"""The command line: fit, validate, compare, plan, inspect, generate, export, algorithms."""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from rlzoo.callbacks import CollapseMonitor, IterationCheckpoint, Report
from rlzoo.cli import commands, jsonargparse_internals
from rlzoo.cli.messages import explain
from rlzoo.cli.overview import answered
from rlzoo.compare import command as comparison
from rlzoo.errors import UserError, one_line
from rlzoo.plan import command as sizing
from rlzoo.strategies.deepspeed.checks import check_installed
from rlzoo.strategies.fsdp2 import check_sharding
from rlzoo.training.checkpoint import check_file
from rlzoo.training.checks import check_precision
from rlzoo.training.data import PromptDataModule
from rlzoo.training.module import RLModule

NOISE = (
    ".*does not have many workers.*",
    ".*sync_dist=True.*",  # values are reduced over ranks before they are logged
    ".*LeafSpec.*",
    r".*module\(s\) in eval mode at the start.*",  # the policy's mode is set before every pass
    ".*Converting a tensor with requires_grad=True.*",
    ".*`save_weights_only`.*",
    r".*`lr_scheduler.step\(\)` before.*",  # the first update was skipped, and we said so
    ".*was called before the ``update`` method.*",  # every held-out reward abstained
    ".*Please use `torch.distributed.all_gather_single`.*",  # DeepSpeed's call
    ".*dataloader is not resumable.*",  # IterationSampler goes on from the finished iterations
)
"""Warnings of other libraries that ask for nothing a user could do."""

log = logging.getLogger("rlzoo")


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
        config = self._parser(command).dump(self.config[command], skip_link_targets=False)
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


def keys_of(parser: LightningArgumentParser) -> list[str]:
    """Return every key a parser knows."""
    return [action.dest for action in parser._actions if action.dest not in ("help", "config")]


class Settled(RLCLI):
    """A command line of fit that is read and checked, and starts nothing."""

    def _set_seed(self) -> None:
        pass

    def before_instantiate_classes(self) -> None:
        """Leave it to the run to say whether its machine will do."""

    def instantiate_classes(self) -> None:
        """Keep the configuration alone."""

    def _run_subcommand(self, subcommand: str) -> None:
        pass


def settle(args: list[str]) -> dict[str, Any]:
    """Return every setting that fit would run with.

    Args:
        args: The command line after ``rlzoo fit``.

    Returns:
        The settings, defaults included.

    Raises:
        UserError: If the configuration is refused.
    """
    level = log.level
    log.setLevel(logging.ERROR)  # what a setting replaces is said by the run
    try:
        cli = lightning_command(["fit", *args], Settled)
    finally:
        log.setLevel(level)
    settings: dict[str, Any] = yaml.safe_load(cli._parser("fit").dump(cli.config["fit"]))
    return settings


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
        keys = keys_of(cli[0]._subcommand_parsers[args[0]]) if cli else []
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


def quiet() -> None:
    """Keep other libraries' advertising and repeated advice out of the way."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    log.setLevel(logging.INFO)
    noisy = ("pytorch.utilities.rank_zero", "fabric.utilities.seed", "fabric.utilities.distributed")
    for name in (f"lightning.{part}" for part in noisy):
        logging.getLogger(name).setLevel(logging.WARNING)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        log.setLevel(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    for pattern in NOISE:
        warnings.filterwarnings("ignore", pattern)


def main(args: list[str] | None = None) -> None:
    """Run a command; a refused setting is one line on stderr and exit status 2."""
    args = sys.argv[1:] if args is None else args
    if answered(args):
        return
    sys.path.insert(0, os.getcwd())
    quiet()
    jsonargparse_internals.install()
    command = args[0]
    try:
        if command in RLCLI.subcommands():
            lightning_command(args)
        elif command == "compare":
            comparison.compare(args[1:], settle)
        elif command == "plan":
            sizing.plan(args[1:], settle)
        else:
            commands.run(command, args[1:], [*RLCLI.subcommands(), "compare", "plan"])
    except UserError as error:
        if os.environ.get("RLZOO_TRACEBACK"):
            raise
        print(f"rlzoo: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (yaml.YAMLError, MisconfigurationException) as error:
        print(f"rlzoo: error: {one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None
