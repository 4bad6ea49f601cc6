"""The figures and tables of Acar et al., FedDyn (ICLR 2021)."""
