"""What is done with rollouts and their rewards before they train."""
