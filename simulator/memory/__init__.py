"""What one GPU has to hold, and which layouts would need less."""
