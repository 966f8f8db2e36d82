"""The computer: memory budgets, interrupts, confined processes, clusters."""
