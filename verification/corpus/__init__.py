"""Corpus of small training scripts in the style of public training code. Each must end with the same bits in every history, or be
refused or named in a message.

    python -m verification.corpus [--story NAME] [--only NAME,NAME] [--jobs 2] [--write docs/reports/corpus.md]

`kinds` lists the scripts with the idiom that each represents, and the expected verdict (`script`). `worker` runs one of them in
a process, `course` drives a job of such processes through a history with the product's own controller and agent, `verdict` judges
the result, and `table` writes the verdicts.
"""
