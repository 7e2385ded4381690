"""Written by `python docs/generate.py`; the names are found by looking."""

from rlzoo.algorithms.aspo import ASPO as ASPO
from rlzoo.algorithms.base import Algorithm as Algorithm
from rlzoo.algorithms.cispo import CISPO as CISPO
from rlzoo.algorithms.clip_cov import ClipCov as ClipCov
from rlzoo.algorithms.dapo import DAPO as DAPO
from rlzoo.algorithms.dppo_kl import DPPOKL as DPPOKL
from rlzoo.algorithms.dppo_tv import DPPOTV as DPPOTV
from rlzoo.algorithms.dro import DRO as DRO
from rlzoo.algorithms.dr_grpo import DrGRPO as DrGRPO
from rlzoo.algorithms.fipo import FIPO as FIPO
from rlzoo.algorithms.gepo import GEPO as GEPO
from rlzoo.algorithms.gmpo import GMPO as GMPO
from rlzoo.algorithms.grpo import GRPO as GRPO
from rlzoo.algorithms.gspo import GSPO as GSPO
from rlzoo.algorithms.gspo_token import GSPOToken as GSPOToken
from rlzoo.algorithms.gtpo import GTPO as GTPO
from rlzoo.algorithms.kl_cov import KLCov as KLCov
from rlzoo.algorithms.luspo import LUSPO as LUSPO
from rlzoo.algorithms.minirl import MiniRL as MiniRL
from rlzoo.algorithms.ppo import PPO as PPO
from rlzoo.algorithms.real import REAL as REAL
from rlzoo.algorithms.reinforce import REINFORCE as REINFORCE
from rlzoo.algorithms.rloo import RLOO as RLOO
from rlzoo.algorithms.rloo_sequence_clip import RLOOSequenceClip as RLOOSequenceClip
from rlzoo.algorithms.sapo import SAPO as SAPO
from rlzoo.algorithms.base import Surrogate as Surrogate
from rlzoo.algorithms.topr import TOPR as TOPR
from rlzoo.algorithms.vespo import VESPO as VESPO

__all__ = ["ASPO", "Algorithm", "CISPO", "ClipCov", "DAPO", "DPPOKL", "DPPOTV", "DRO", "DrGRPO", "FIPO", "GEPO", "GMPO", "GRPO", "GSPO", "GSPOToken", "GTPO", "KLCov", "LUSPO", "MiniRL", "PPO", "REAL", "REINFORCE", "RLOO", "RLOOSequenceClip", "SAPO", "Surrogate", "TOPR", "VESPO", "discover"]

def discover() -> dict[str, type[Algorithm]]: ...
