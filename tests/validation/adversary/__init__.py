"""Wrong and dishonest user functions, and a command that shows which of them pass as right.

`honest.py` computes each op; `mistakes` and `cheats` compute it wrongly, or rightly but not for the
time reported.
"""
