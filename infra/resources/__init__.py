"""Dynamic Pulumi providers: importable, stateless, idempotent, addressed by name."""

from infra.resources import orphan_watch

orphan_watch.start_in_provider_process()
