"""What a client runs: solvers, learning-rate schedules, amounts of work."""
