"""Clients' work on many processes and machines, by Ray.

Nothing here is imported before somebody asks for `engine = "ray"`: Ray comes with the extra
`undrift[ray]`.
"""
