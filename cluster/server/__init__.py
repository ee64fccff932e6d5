"""The server's loop: rounds, schedules, events, evaluation, checkpoints, the ledger of bytes."""
