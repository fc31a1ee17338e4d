"""What `import bench` offers: functions measured, compared and swept from Python, by the commands'
machinery.
"""
