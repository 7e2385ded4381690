"""One iteration, as a LightningModule: rollouts, rewards, advantages, updates."""
