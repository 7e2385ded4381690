"""Mixtures of experts: the policy, the families of routers it knows, the hooks that watch them."""
