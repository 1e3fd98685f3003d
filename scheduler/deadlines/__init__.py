"""Deadlines: whether a job can be promised to end in time, and what keeps the promises (ElasticFlow 4). Pure.

* `levels`: with how many GPUs a job may run, and how fast it is then; what is done with curves that are not concave;
* `timeline`: the GPUs that are left over time, and the least GPU time that ends a job before its deadline (Algorithm 1, line 11);
* `promises`: all promised jobs together, in the order of their deadlines (Algorithm 1);
* `allocation`: who gets how many GPUs now (Algorithm 2);
* `verdict`: newcomers of one turn, admitted or refused, and what would hold in place of what does not;
* `reserve`: GPUs that are kept back for servers that fail;
* `table`: from the scheduler's view to these.

Times are Unix times or seconds of a simulation's clock, `*_s`. Work is measured in seconds on one GPU, as `left_s` of the view.
"""
