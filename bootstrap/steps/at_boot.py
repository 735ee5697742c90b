"""A script that runs now and at every boot, before the daemons that need what it makes."""

from __future__ import annotations

from bootstrap.action import Action, enable, write
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


def at_boot(  # noqa: PLR0913
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
    """`done`: what the script makes is there already."""
    unit = UNIT.format(description=description, after=after, before=before, name=name)
    todo = [
        *write(facts, f"/etc/muster/{name}", script, 0o755),
        *write(facts, f"/etc/systemd/system/muster-{name}.service", unit),
    ]
    run = bool(todo) or not done
    if todo or f"muster-{name}" not in facts.enabled:
        todo.append(Action(f"enable muster-{name}", f"{enable(f'muster-{name}')}\nsystemctl daemon-reload"))
    if run:
        # By systemd, so that it knows what ran and a daemon that requires it does not wait for a boot.
        start = f"systemctl restart muster-{name} || {{ {last_line(name)}; exit 1; }}"
        log = f"journalctl -u muster-{name}"
        todo.append(Action(f"run muster-{name}", start, timeout=timeout, log=log, fix=fix, slow=True))
    return todo


def last_line(name: str) -> str:
    said = f"journalctl -u muster-{name} --since -1h -o cat --no-pager -t {name}"
    return f"{said} | tail -n 1 | grep . >&2 || echo 'muster-{name} failed' >&2"
