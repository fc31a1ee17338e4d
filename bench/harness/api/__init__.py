"""What `import bench` offers: functions measured, compared and swept from Python, by the commands' own machinery.

It stands above every other folder of the harness and may import all of them; only `bench/__init__.py` and the files of
the operations import it.
"""
