"""Tables of published runs and collectives: each row as a question to the model."""
