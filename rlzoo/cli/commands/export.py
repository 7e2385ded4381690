"""The command ``rlzoo export``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlzoo.cli.parser import Parser
from rlzoo.errors import UserError
from rlzoo.training.checkpoint import policy_of, read_checkpoint


def export(args: Sequence[str]) -> None:
    """Write a trained policy as a Hugging Face folder."""
    parser = Parser("export", "Write a trained policy as a Hugging Face folder.")
    parser.add_argument("--ckpt_path", required=True, help="checkpoint of rlzoo fit")
    parser.add_argument("--output_dir", required=True, help="folder to write")
    given = parser.parse_args(args)
    folder = Path(given.output_dir)
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"output_dir '{folder}' is not empty; give a new folder")
    policy_of(read_checkpoint(given.ckpt_path)).save_pretrained(folder)
    print(f"wrote {folder}; load it with AutoModelForCausalLM.from_pretrained('{folder}')")
