"""From one step to a whole run: failures and checkpoints, money, electricity."""
