"""Steps of the optimizer AdamW."""
