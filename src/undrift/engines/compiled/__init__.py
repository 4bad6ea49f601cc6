"""A small C kernel that trains small dense networks, compiled where the machine has a compiler."""
