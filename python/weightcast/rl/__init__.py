"""A reinforcement-learning loop for language models on top of weightcast: `python -m weightcast.rl`."""
