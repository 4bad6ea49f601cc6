"""Local work of clients: solvers, learning-rate schedules and amounts of work."""
