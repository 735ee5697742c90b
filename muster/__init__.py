"""The command line: one app, one file per command."""
