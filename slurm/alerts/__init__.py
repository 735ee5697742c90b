"""Alerts: a program on the controller that tells people, through a webhook, what they should know without looking."""
