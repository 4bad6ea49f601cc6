"""The Ray engine: clients train on the processes of one machine or of a cluster.

Ray comes with the extra `undrift[ray]`, so modules that import it are loaded only when a user asks
for `engine = "ray"`.
"""
