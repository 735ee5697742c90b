"""Networks written to be read. Nothing in here knows how it is spread over ranks."""
