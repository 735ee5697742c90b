"""What a run measures: device values without waiting, step time by cause, communication, utilisation, records."""
