"""What is to be done: decisions of the scheduler, and how each job is brought nearer to them."""
