"""The Pulumi CLI as a subprocess: its environment, its project, its lock, its events."""
