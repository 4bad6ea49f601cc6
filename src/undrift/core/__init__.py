"""The contract between methods, engines and loops: problems, messages, sums, clients, losses."""
