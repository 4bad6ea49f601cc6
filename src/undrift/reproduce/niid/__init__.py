"""The outside yardstick NIID-Bench: four methods on CIFAR-10 under several kinds of skew."""
