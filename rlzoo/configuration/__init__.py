"""How settings become constructor arguments, and objects settings again."""

from rlzoo.configuration.describe import Undescribable, describe
from rlzoo.configuration.recorded import Recorded

__all__ = ["Recorded", "Undescribable", "describe"]
