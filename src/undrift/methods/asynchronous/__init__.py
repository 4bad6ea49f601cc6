"""Methods whose server uses replies as they arrive; AsyncFedDR is beside FedDR in `primal_dual`."""
