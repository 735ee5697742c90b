"""Scripts that run now and at every boot, before the daemons that need their result."""

from __future__ import annotations

from bootstrap.action import Action, enable_unit, write_file
from bootstrap.facts.model import Facts

UNIT = """\
[Unit]
Description={description}
After={after}
Before={before}

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/etc/muster/{name}

[Install]
WantedBy=multi-user.target
"""
DAEMONS = "mariadb.service slurmdbd.service slurmctld.service slurmd.service"


def run_at_boot(  # noqa: PLR0913
    facts: Facts,
    name: str,
    description: str,
    script: str,
    *,
    done: bool,
    after: str = "local-fs.target",
    before: str = DAEMONS,
    timeout: float = 120.0,
    fix: str = "",
) -> list[Action]:
    """Return the actions that install a script as the unit `muster-<name>` and run it, unless it is `done`."""
    unit = UNIT.format(description=description, after=after, before=before, name=name)
    todo = [
        *write_file(facts, f"/etc/muster/{name}", script, 0o755),
        *write_file(facts, f"/etc/systemd/system/muster-{name}.service", unit),
    ]
    run = bool(todo) or not done
    if todo or f"muster-{name}" not in facts.enabled:
        todo.append(Action(f"enable muster-{name}", f"{enable_unit(f'muster-{name}')}\nsystemctl daemon-reload"))
    if run:
        # systemd runs the script, so that units that require this one start without a reboot.
        start = f"systemctl restart muster-{name} || {{ {_print_last_line(name)}; exit 1; }}"
        log = f"journalctl -u muster-{name}"
        todo.append(Action(f"run muster-{name}", start, timeout=timeout, log=log, fix=fix, slow=True))
    return todo


def _print_last_line(name: str) -> str:
    output = f"journalctl -u muster-{name} --since -1h -o cat --no-pager -t {name}"
    return f"{output} | tail -n 1 | grep . >&2 || echo 'muster-{name} failed' >&2"
