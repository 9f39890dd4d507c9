"""The process engine: the agent as a plain child process. No isolation; for trusted code only."""
