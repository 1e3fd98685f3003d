"""`elasticctl`: one file per noun, a client, renderers. Heavy modules are imported only when needed, so that commands
start fast.
"""
