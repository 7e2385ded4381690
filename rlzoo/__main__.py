"""The entry point: the overview at once, all else after its libraries are loaded."""

from __future__ import annotations

import os
import sys

from rlzoo.cli.overview import answered


def main() -> None:
    """Run the command line."""
    try:
        try:
            if not answered(sys.argv[1:]):
                from rlzoo.cli.main import main as run

                run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _nobody_reads():
            raise  # of another pipe, such as one to a process that judges answers
        sys.exit(1)


def _nobody_reads() -> bool:
    """Return whether the reader of the output is gone, as after ``| head -1``; then say no more."""
    try:
        print(flush=True)  # an empty line, since a flush of nothing would not fail
    except BrokenPipeError:
        # Python flushes once more as it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


if __name__ == "__main__":
    main()
