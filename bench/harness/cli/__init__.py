"""What every command shares: arguments, the session that keeps a run, the terminal, Ctrl-C."""
