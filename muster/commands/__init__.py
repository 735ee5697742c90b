"""What a person types: one module per command. `muster.cli` imports each only when it is asked for."""
