"""The column headings of metrics, shared by all tables of results."""

METRIC_HEADINGS = {
    "objective": "objective",
    "train_loss": "train loss",
    "train_accuracy": "train acc",
    "train_absolute_error": "train MAE",
    "validation_loss": "",
    "validation_accuracy": "val acc",
    "validation_absolute_error": "val MAE",
    "validation_client_accuracy_mean": "",
    "validation_client_accuracy_std": "",
    "validation_client_accuracy_worst_tenth": "",
    "test_loss": "test loss",
    "test_accuracy": "test acc",
    "test_absolute_error": "test MAE",
    "gradient_norm": "gradient",
    "gradient_mapping": "mapping",
    "train_client_accuracy_mean": "",
    "train_client_accuracy_std": "",
    "train_client_accuracy_worst_tenth": "worst train",
    "test_client_accuracy_mean": "",
    "test_client_accuracy_std": "",
    "test_client_accuracy_worst_tenth": "worst test",
}
"""Metrics in the order of a summary, with their column headings; those without are hidden."""


def shown_at_the_end(metric: str) -> bool:
    """Whether tables of final metrics show it: not the many summaries over clients."""
    return bool(METRIC_HEADINGS.get(metric, "_client_" not in metric))
