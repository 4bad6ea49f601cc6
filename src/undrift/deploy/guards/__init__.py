"""What one site can do to a run: claims, metrics, targets, and the expulsion of sites."""
