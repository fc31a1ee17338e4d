"""A training step: the model, its plan, its memory, and the checks of both."""
