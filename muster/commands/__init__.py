"""The commands, one module each; `muster.cli` imports a module only when its command runs."""
