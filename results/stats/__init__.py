"""Statistics of samples and of ratios, and the verdicts they allow."""
