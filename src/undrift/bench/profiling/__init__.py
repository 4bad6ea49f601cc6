"""Profiles of a round: how its time is divided, and how much of the machine it uses."""
