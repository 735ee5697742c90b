"""Measuring a run: values read without waiting, step time by cause, communication, utilisation, and records."""
