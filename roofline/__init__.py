"""MODEL: hardware facts, work, ceilings, verdicts, plots. Imports only `results`, and never torch."""
