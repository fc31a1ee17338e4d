"""Processes for the code of users: started, watched by a heartbeat, and ended with their parent."""
