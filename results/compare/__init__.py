"""Two versions from kept runs, case by case, with a verdict."""
