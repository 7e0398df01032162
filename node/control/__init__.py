"""The node's control plane: a FastAPI process beside the engine."""
