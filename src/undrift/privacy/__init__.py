"""Privacy of uploads: what protects a client's contribution on its way to the server."""
