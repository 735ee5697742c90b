"""Commands whose last arguments are a command of its own, such as that of `muster ssh`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class CommandAfterDashes(TyperCommand):
    """A command such as `muster ssh NODE -- COMMAND`: what follows the dashes is not parsed, even without NODE."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        before, after = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.obj = after
        return super().parse_args(ctx, before)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]
