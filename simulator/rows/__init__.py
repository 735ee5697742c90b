"""Parse tables of runs and collectives into inputs of the model, and predict each row."""
