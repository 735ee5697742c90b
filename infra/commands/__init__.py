"""What a person types: one module per command. `infra.cli` imports each only when it is asked for."""
