"""The reinforcement-learning loop: trainers learn, engines generate, weights flow (docs/rl.md)."""
