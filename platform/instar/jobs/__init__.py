"""Background work: the Celery app, leases, outbox and reaper."""
