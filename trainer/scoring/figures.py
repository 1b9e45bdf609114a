"""Figures of predictions, and their names in results."""

Figures = dict[tuple[str, str, str], float]
"""(metric, subset, scorer) → value; a figure that cannot be computed is absent."""


def flat_figures(figures: Figures, suffix: str = "") -> dict[str, float]:
    """Figures by the keys of results and score files, such as ``ap``, ``random_ap`` and ``recency_inductive_ap``."""
    return {
        "_".join(
            [
                *([] if scorer == "model" else [scorer]),
                *([] if subset == "all" else [subset]),
                metric + suffix,
            ]
        ): value
        for (metric, subset, scorer), value in figures.items()
    }
