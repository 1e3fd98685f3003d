"""`elasticctl top`: the cluster in a terminal, as it changes, for people who know k9s and nvitop. Read only.

`views` turns answers of the controller into lines, by the functions that make the tables of the commands; it is pure.
`lines` draws them, only the visible ones, so that a thousand jobs cost no more than a screen of them. `app` has pages,
keys and prompts. `ctl/screens` sends the requests to the controller.
"""
