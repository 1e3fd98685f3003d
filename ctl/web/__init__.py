"""`elasticctl web`: the cluster as pages for a browser, read only, in a process of its own.

Theory of operation
-------------------
The process is a client of the controller like any other: it has a key, and shows what this key may see. A request of a
browser passes `guard`, which knows the allowed names, the methods and the token. `server` answers it with a document of
`documents`, made by the functions that make the tables of the commands, from answers that all viewers share (`ctl/screens`).

The pages (`static/`) are files without a build step. They put data into the page as text only, and get new data by asking again.
"""
