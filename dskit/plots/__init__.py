"""Figures, one function each, from rows that runs left behind; one style for all of them."""

from dskit.plots.graphs import plot_graph_operations
from dskit.plots.loss import plot_losses_and_difference
from dskit.plots.ownership import plot_ownership

__all__ = ["plot_graph_operations", "plot_losses_and_difference", "plot_ownership"]
