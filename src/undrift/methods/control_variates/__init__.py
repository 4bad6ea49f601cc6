"""Methods in which a client keeps a vector that corrects its gradients or replaces its absence."""
