"""What needs no libraries is answered at once."""

from __future__ import annotations

from collections.abc import Sequence

from rlzoo import __version__

OVERVIEW = f"""rlzoo {__version__}: policy-gradient objectives for language models

  rlzoo fit        --config configs/quickstart.yaml [--model.algorithm GSPO]   train
  rlzoo validate   --config ... [--ckpt_path ...]                              held-out accuracy
  rlzoo compare    --config configs/compare.yaml [--seeds 0,1,2 --jobs 2]      side by side
  rlzoo plan       --config ... [--hardware h100]                              memory and speed
  rlzoo inspect    --ckpt_path ... [--algorithms GRPO,GSPO]                    what the clips do
  rlzoo generate   --ckpt_path ... --prompt "S31452="                          answers to a prompt
  rlzoo export     --ckpt_path ... --output_dir ...                            a Hugging Face folder
  rlzoo algorithms [NAME]                                                      the objectives

`rlzoo COMMAND --help` explains a command; `rlzoo fit --config ... --print_config` prints every
setting with its value, in a form that reproduces the run."""


def answered(args: Sequence[str]) -> bool:
    """Print the overview or the version, if that is what is asked for.

    Args:
        args: Words of the command line.

    Returns:
        Whether it was.
    """
    word = args[0] if args else "--help"
    if word in ("-h", "--help"):
        print(OVERVIEW)
    elif word == "--version":
        print(__version__)
    else:
        return False
    return True
