"""Scripts that run now and at every boot, before the daemons that need their result."""

from __future__ import annotations

from bootstrap.action import Action, enable_unit, reload_units, write_file
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
LOGINS = "systemd-user-sessions.service"
# Until this unit has started, only root can log in. Run Command and the daemons do not depend on it.
REQUIRED_FOR_LOGINS = "[Unit]\nRequires=muster-{name}.service\n"
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
    required_for_logins: bool = False,
    timeout: float = 120.0,
    fix: str = "",
) -> list[Action]:
    """Return the actions that install a script as the unit `muster-<name>` and run it, unless it is `done`.

    With `required_for_logins`, only root can log in after the script failed, until it succeeds.
    """
    unit = UNIT.format(description=description, after=after, before=before, name=name)
    todo = [
        *write_file(facts, f"/etc/muster/{name}", script, 0o755),
        *write_file(facts, f"/etc/systemd/system/muster-{name}.service", unit),
    ]
    if required_for_logins:
        drop_in = f"/etc/systemd/system/{LOGINS}.d/muster-{name}.conf"
        todo += write_file(facts, drop_in, REQUIRED_FOR_LOGINS.format(name=name))
    run = bool(todo) or not done
    if todo or f"muster-{name}" not in facts.enabled:
        # The drop-in changes a unit that systemd has read; a caller may have written one for slurmd, too.
        reload = "systemctl daemon-reload" if required_for_logins else reload_units(facts, f"muster-{name}.service")
        todo.append(Action(f"enable muster-{name}", f"{enable_unit(f'muster-{name}')}\n{reload}"))
    if run:
        # systemd runs the script, so that units that require this one start without a reboot.
        start = f"systemctl restart muster-{name} || {{ {_print_last_line(name)}; exit 1; }}"
        if required_for_logins:
            # At a boot at which the script failed, this unit was not started. During a boot it may have to wait.
            start += f"\nsystemctl start --no-block {LOGINS}"
        log = f"journalctl -u muster-{name}"
        todo.append(Action(f"run muster-{name}", start, timeout=timeout, log=log, fix=fix, slow=True))
    return todo


def _print_last_line(name: str) -> str:
    output = f"journalctl -u muster-{name} --since -1h -o cat --no-pager -t {name}"
    return f"{output} | tail -n 1 | grep . >&2 || echo 'muster-{name} failed' >&2"
