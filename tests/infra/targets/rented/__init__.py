"""What the tests of targets that rent machines share."""
