"""Dynamic Pulumi providers: stateless and idempotent, with resources addressed by name."""

from infra.resources import orphan_watch

orphan_watch.start_in_provider_process()
