"""A corpus of small training scripts in the manner of public training code: each ends with the same bits in every history, or
is told by name that it does not.

    python -m verification.corpus [--quick] [--only NAME,NAME] [--jobs 2] [--write docs/reports/corpus.md]

`index` lists the scripts with the idiom that each stands for, and what is expected of it. `worker` runs one of them in a
process, `course` drives a job of such processes through a history with the product's own controller and agent, `verdict` says
what became of it, `table` writes the verdicts down.
"""
