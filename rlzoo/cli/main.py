"""Where every command starts."""

from __future__ import annotations

import logging
import os
import sys
import warnings

import transformers
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException

from rlzoo.cli.commands import command_of
from rlzoo.cli.overview import answered
from rlzoo.errors import UserError, one_line

NOISE = (
    ".*sync_dist=True.*",  # values are reduced over ranks before they are logged
    ".*LeafSpec.*",
    r".*module\(s\) in eval mode at the start.*",  # the policy's mode is set before every pass
    ".*Converting a tensor with requires_grad=True.*",
    ".*`save_weights_only`.*",
    r".*`lr_scheduler.step\(\)` before.*",  # the first update was skipped, and we said so
    ".*was called before the ``update`` method.*",  # every held-out reward abstained
    ".*Please use `torch.distributed.all_gather_single`.*",  # DeepSpeed's call
    ".*dataloader is not resumable.*",  # IterationBatches goes on from the finished iterations
)
"""Warnings of other libraries that ask for nothing a user could do."""

log = logging.getLogger("rlzoo")


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
    try:
        # Here and not above: it refuses other versions of jsonargparse, which is one line as well.
        from rlzoo.cli import jsonargparse_internals

        jsonargparse_internals.install()
        command_of(args[0]).load()(args[1:])
    except UserError as error:
        if os.environ.get("RLZOO_TRACEBACK"):
            raise
        print(f"rlzoo: error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (yaml.YAMLError, MisconfigurationException) as error:
        print(f"rlzoo: error: {one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None
