"""One thread per process: sums come out the same everywhere, and test runs do not fight."""

import torch

torch.set_num_threads(1)
