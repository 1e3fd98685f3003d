"""Deadlines: whether a job can be promised to end in time, and how promises are kept (ElasticFlow 4). Pure.

* `levels`: the GPU counts with which a job may run, the speed with each, and the treatment of curves that are not
  concave;
* `timeline`: the GPUs that are left over time, and the least GPU time that ends a job before its deadline (Algorithm 1,
  line 11);
* `promises`: all promised jobs together, in the order of their deadlines (Algorithm 1);
* `allocation`: how many GPUs each job gets now (Algorithm 2);
* `decision`: newcomers of one turn, admitted or refused, with counter-offers for those refused;
* `reserve`: GPUs that are kept back for servers that fail;
* `table`: conversion of the scheduler's view to these types.

A newcomer is a job that is yet to be admitted. Times are Unix times or seconds of a simulation's clock, `*_s`. Work is
measured in seconds on one GPU, as `left_s` of the view.
"""
