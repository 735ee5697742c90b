"""The command line `muster`: one typer app, one module per command."""
