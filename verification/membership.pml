/* The membership protocol of one job: worker/membership/machine.py with worker/membership/campaign.py under controller/jobs/generations.py, for three workers.

   The handlers have the names that they have in worker/membership/machine.py; README.md has the table, what is left out, and why. All
   that a lock makes one piece there is one atomic step here. Messages are slots, one for each sender, receiver and kind: what
   is in flight may wait for ever, a later one of its kind takes its place, and different kinds overtake one another. With LOSSY
   messages are also lost and repeated.

   `applied` counts no steps, which would have no end, but how near a worker is to the newest step that has been completed:
   NEWEST, one or more less, or NOTHING. That is all the protocol compares, and it lets training go on for ever in a finite model.

   SCENARIO  which rosters are ordered (see `plan`)       FAULTS  how many workers are killed, or 0
   GLITCH    the fault is a link, all workers live        LOSSY   messages are lost and repeated, preparations time out
   MUTANT_x  the protocol with a mistake in it: the check must find it                                                     */

#ifndef SCENARIO
#define SCENARIO 1
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 1
#endif

#define N        3   /* workers */
#define G        10  /* generations, with those that the controller answers a fault with: never reached, see `give` */
#ifndef PLANNED
#define PLANNED  3   /* orders that the scheduler wants */
#endif
#define NOTHING  0   /* `applied`: no state */
#define NEWEST   3   /* `applied`: the newest completed step; 2 is one before, 1 is any before that */
#define UNKNOWN  15  /* `base`: this worker cannot say yet */
#define UNREADY  14  /* in a leader's table: has not said Ready */

#define BIT(i)     (1 << (i))
#define IN(set, i) (((set) >> (i)) & 1)
#define AT(l, f)   ((l) * N + (f))
#define GRP(w, g)  ((w) * (G + 1) + (g))

/* ---- the controller's records ---- */
byte newest;                /* newest order */
byte roster[G + 1], lead[G + 1];
short told[G + 1];          /* of each order, like `roster` and `lead`: the broken generations it lists, as bits */
short broken;               /* generations, as bits */
byte issued;                /* planned orders given */
byte plan[3];
bit recovery, joined;       /* is the newest order one after a loss; is it a union, given so that the state has somebody to go to */
byte started;               /* workers whose process runs */
byte reported[N];           /* the generation that a worker has said to stand still in */
byte noticed;               /* losses that the controller knows of */
bit over;                   /* nobody is left: the job starts again from its checkpoint, which is another model's matter */

/* ---- the workers (worker/membership/machine.py) ---- */
mtype = { STARTING, WAITING, BOUNDARY, COLLECTIVE, RESULT, GONE };
mtype thread[N] = STARTING; /* where the training thread stands */
bit dead[N], left[N], arrived[N], abandoned[N], stopped[N], joining[N];
byte gen[N], attempt[N], superseded[N], applied[N], order[N];
byte proposed[N], decided[N];
byte word[N], target[N];    /* of the completed step whose result is on its way to the training thread */

byte g_attempt[N * (G + 1)], g_base[N * (G + 1)], g_holders[N * (G + 1)];  /* groups; attempt 0: none */
bit g_built[N * (G + 1)];

bit campaign[N];            /* for the leader's newest order */
byte c_attempt[N], c_base[N], c_holders[N], c_prepared[N];
byte r_base[N * N], r_applied[N * N];  /* campaign.ready, by leader and follower */

/* ---- messages in flight, by sender and receiver; generation 0: none ---- */
byte ready_g[N * N], ready_base[N * N], ready_applied[N * N];
byte prepare_g[N * N], prepare_attempt[N * N], prepare_base[N * N], prepare_holders[N * N];
byte prepared_g[N * N], prepared_attempt[N * N], prepared_base[N * N], prepared_applied[N * N];
byte commit_g[N * N], commit_attempt[N * N];

short hurt;                 /* generations with a member that has come out of the communicator: others may see it fail */
byte faults = FAULTS;
#ifdef LOSSY
byte timeouts = TIMEOUTS;
#endif

/* With ENDS, training pauses when two steps have brought nothing new, until something else happens. Then the model has no
   run without end, and (e) becomes: it has no cycle, and where it stops the newest order has been reached. */
#ifdef ENDS
byte idle;
#define ASKS(g, x)   (IN(roster[g], x) && gen[x] == g && (proposed[x] || joining[x]))
#define GOES_ON(g)   (idle < 2 || ASKS(g, 0) || ASKS(g, 1) || ASKS(g, 2))
#define NEWS         idle = 0
#define STEPPED(w)   idle = (w -> 0 : idle + 1)
#else
#define GOES_ON(g)   1
#define NEWS         skip
#define STEPPED(w)   skip
#endif

hidden byte i, j, k, m, n, s, top, set, who, what;  /* scratch, never carried from one step to another */
hidden byte all;
hidden short gens;

/* ---- what a status report says ---- */
#define USABLE(w)     (!IN(noticed, w) && !left[w])
#define HAS_STATE(w)  (USABLE(w) && gen[w] > 0 && applied[w] != NOTHING)
#define BASE(w)       (!arrived[w] -> UNKNOWN : ((gen[w] == 0 || stopped[w]) -> 0 : (abandoned[w] -> UNKNOWN : gen[w])))
#define SAID(w)        (BASE(w) -> 0 : applied[w])
#define LEADS(w)      (order[w] > gen[w] && lead[order[w]] == w)
#define BUILT(w, g)   (g_attempt[GRP(w, g)] && g_built[GRP(w, g)])
#define ALL_PREPARED(w) (campaign[w] && c_attempt[w] > 0 && c_prepared[w] == roster[order[w]])
#define IN_FLIGHT(w)   proposed[w]
#define KNOWN          (gen[0] > gen[1] -> (gen[0] > gen[2] -> gen[0] : gen[2]) : (gen[1] > gen[2] -> gen[1] : gen[2]))
#define LOST(g)       (IN(roster[g], 0) && dead[0] || IN(roster[g], 1) && dead[1] || IN(roster[g], 2) && dead[2])
#define HURT(g)       (IN(hurt, g) || LOST(g))

/* Who has missed the step that carried the decision for `g` cannot follow it. */
#ifdef MUTANT_STRAGGLER
#define MISSED(w, g)  0
#else
#define MISSED(w, g)  (gen[w] && g_base[GRP(w, g)] == gen[w])
#endif

/* ---- the network ---- */

inline clear_ready(f, l)    { ready_g[AT(f, l)] = 0; ready_base[AT(f, l)] = 0; ready_applied[AT(f, l)] = 0 }
inline clear_prepared(f, l) { prepared_g[AT(f, l)] = 0; prepared_attempt[AT(f, l)] = 0; prepared_base[AT(f, l)] = 0; prepared_applied[AT(f, l)] = 0 }
inline clear_commit(l, f)   { commit_g[AT(l, f)] = 0; commit_attempt[AT(l, f)] = 0 }
inline clear_prepare(l, f) {
  prepare_g[AT(l, f)] = 0; prepare_attempt[AT(l, f)] = 0; prepare_base[AT(l, f)] = 0; prepare_holders[AT(l, f)] = 0
}

/* ---- the machine: preparing ---- */

inline send_prepare(l, f) {
  prepare_g[AT(l, f)] = order[l]; prepare_attempt[AT(l, f)] = c_attempt[l];
  prepare_base[AT(l, f)] = c_base[l]; prepare_holders[AT(l, f)] = c_holders[l]
}

inline build(w, g, a, b, h) {
  if :: a -> printf("STORY %d prepares %d, attempt %d from base %d, holders %d\n", w, g, a, b, h) :: else fi;
  g_attempt[GRP(w, g)] = a; g_base[GRP(w, g)] = b; g_holders[GRP(w, g)] = h; g_built[GRP(w, g)] = 0
}

inline clear_campaign(w) {
  c_base[w] = 0; c_holders[w] = 0; c_prepared[w] = 0;
  for (j : 0 .. N - 1) { r_base[AT(w, j)] = UNREADY; r_applied[AT(w, j)] = 0 }
}

inline choose_holders(l, b) {
  set = 0; top = NOTHING;
  for (j : 0 .. N - 1) {
    if :: IN(roster[order[l]], j) && r_applied[AT(l, j)] > top -> top = r_applied[AT(l, j)] :: else fi
  }
  for (j : 0 .. N - 1) {
    if
    :: !IN(roster[order[l]], j) -> skip
    :: else ->
       if
       :: b && r_base[AT(l, j)] == b -> set = set | BIT(j)
#ifdef MUTANT_HOLDERS
       :: !b && top && r_applied[AT(l, j)] -> set = set | BIT(j)
#else
       :: !b && top && r_applied[AT(l, j)] == top -> set = set | BIT(j)
#endif
       :: else
       fi
    fi
  }
  if :: !b && !top -> set = BIT(l) :: else fi
}

inline prepare(l) {
  m = BASE(l);
#ifdef MUTANT_ATTEMPT
  all = (m != UNKNOWN);
#else
  all = (m != UNKNOWN && !IN_FLIGHT(l));
#endif
  for (j : 0 .. N - 1) {
    if
    :: IN(roster[order[l]], j) && r_base[AT(l, j)] != 0 && r_base[AT(l, j)] != m -> all = 0
    :: else
    fi
  }
  if
  :: all ->
     choose_holders(l, m);
     c_attempt[l]++; c_base[l] = m; c_holders[l] = set; c_prepared[l] = 0;
     for (j : 0 .. N - 1) { if :: j != l && IN(roster[order[l]], j) -> send_prepare(l, j) :: else fi }
     build(l, order[l], c_attempt[l], m, set)
  :: else
  fi
}

inline on_ready(l, f, b, a) {
  printf("STORY %d takes Ready of %d for %d, base %d, applied %d\n", l, f, order[l], b, a);
  if
  :: campaign[l] && IN(roster[order[l]], f) ->
     k = r_base[AT(l, f)]; n = r_applied[AT(l, f)];
     r_base[AT(l, f)] = b; r_applied[AT(l, f)] = a;
     if
#ifdef MUTANT_APPLIED
     :: c_holders[l] && k == b ->
#else
     :: c_holders[l] && k == b && n == a ->
#endif
        if :: !IN(c_prepared[l], f) && f != l -> send_prepare(l, f) :: else fi
     :: else -> prepare(l)
     fi
  :: else
  fi
}

/* `applied` counts only where nobody trains, so a Ready of a base is the same whatever has been applied. */
inline advance(w) {
  n = BASE(w);
  if
  :: order[w] > gen[w] && n != UNKNOWN && IN(roster[order[w]], w) ->
     if
     :: lead[order[w]] == w -> on_ready(w, w, BASE(w), SAID(w))
     :: else ->
        s = AT(w, lead[order[w]]);
        if
        :: dead[lead[order[w]]] || left[lead[order[w]]]
        :: else -> ready_g[s] = order[w]; ready_base[s] = n; ready_applied[s] = SAID(w)
        fi
     fi
  :: else
  fi
}

inline send_prepared(w, g) {
  s = AT(w, lead[g]);
  if
  :: dead[lead[g]] || left[lead[g]] || prepared_g[s] > g  /* one of a newer order is on its way: this one matters no more */
  :: else -> prepared_g[s] = g; prepared_attempt[s] = g_attempt[GRP(w, g)];
     prepared_base[s] = BASE(w); prepared_applied[s] = SAID(w)
  fi
}

/* ---- the machine: switches ---- */

inline check_broken(w) {
  if
  :: gen[w] && !abandoned[w] && !stopped[w] && IN(told[order[w]], gen[w]) -> abandoned[w] = 1; hurt = hurt | BIT(gen[w])
  :: else
  fi
}

/* Nobody asks any more whether the communicator of a generation in which nobody stands is whole. */
inline forget_hurt() {
  for (j : 1 .. newest) {
    if :: gen[0] != j && gen[1] != j && gen[2] != j -> hurt = hurt & ~BIT(j) :: else fi
  }
}

inline switch(w, g) {
  printf("STORY %d switches to %d from %d, holders %d, applied %d\n", w, g, gen[w], g_holders[GRP(w, g)], applied[w]);
  assert(BUILT(w, g) && IN(roster[g], w) && g > gen[w]);
  gen[w] = g; attempt[w] = g_attempt[GRP(w, g)]; joining[w] = !IN(g_holders[GRP(w, g)], w);
  if
  :: !joining[w] && applied[w] == NOTHING -> assert(g_holders[GRP(w, g)] == BIT(w)); applied[w] = NEWEST
  :: else
  fi;
  forget_hurt();
  for (j : 1 .. g) { build(w, j, 0, 0, 0) }
  abandoned[w] = 0; stopped[w] = 0; superseded[w] = 0; proposed[w] = 0; decided[w] = 0;
  thread[w] = BOUNDARY;
  if
  :: campaign[w] ->
     clear_campaign(w);
     if :: order[w] <= g -> campaign[w] = 0; c_attempt[w] = 0 :: else fi
  :: else
  fi;
  check_broken(w);
  advance(w)
}

/* (d) Where nobody trains, the holders that a leader declares are those of the roster that are furthest. A roster with a
   member that has gone on in a later generation will never take a step: its late commit harms nobody. */
inline check_holders(l) {
  top = NOTHING; all = 1;
  for (j : 0 .. N - 1) {
    if
    :: IN(roster[order[l]], j) && !dead[j] ->
       if :: gen[j] >= order[l] -> all = 0 :: else fi;
       if :: applied[j] > top -> top = applied[j] :: else fi
    :: else
    fi
  }
  for (j : 0 .. N - 1) { if :: all && IN(c_holders[l], j) && !dead[j] -> assert(applied[j] == top) :: else fi }
  assert(c_holders[l] != 0 && (!all || top != NOTHING || c_holders[l] == BIT(l)))
}

/* Prepared counts only if it says what the attempt began with; else it is as good as a new Ready. */
#ifdef MUTANT_APPLIED
#define SAYS_ANEW(l, f, b, a)  0
#else
#define SAYS_ANEW(l, f, b, a)  (r_base[AT(l, f)] != (b) || r_applied[AT(l, f)] != (a))
#endif

inline on_prepared(l, f, b, a) {
  if
  :: SAYS_ANEW(l, f, b, a) -> on_ready(l, f, b, a)
  :: else ->
     c_prepared[l] = c_prepared[l] | BIT(f);
     if
     :: c_prepared[l] == roster[order[l]] && c_base[l] == 0 && BASE(l) == 0 -> commit_by_message(l)
#ifdef MUTANT_MESSAGE
     :: c_prepared[l] == roster[order[l]] && c_base[l] != 0 && BASE(l) == c_base[l] && thread[l] == BOUNDARY -> commit_by_message(l)
#endif
     :: else
     fi
  fi
}

inline commit_by_message(l) {
  check_holders(l);
  for (j : 0 .. N - 1) {
    if
    :: j != l && IN(roster[order[l]], j) && !dead[j] ->
       commit_g[AT(l, j)] = order[l]; commit_attempt[AT(l, j)] = c_attempt[l]
    :: else
    fi
  }
  switch(l, order[l])
}

inline repeat_commit(l, f) {
  printf("STORY %d repeats the commit of %d to %d\n", l, gen[l], f);
  if :: !dead[f] -> commit_g[AT(l, f)] = gen[l]; commit_attempt[AT(l, f)] = attempt[l] :: else fi
}

inline on_commit(w, g, a) {
  printf("STORY %d takes Commit of %d, attempt %d\n", w, g, a);
  if
  :: BUILT(w, g) && g_attempt[GRP(w, g)] == a && g > gen[w] ->
     if
     :: BASE(w) == 0 && !MISSED(w, g) -> switch(w, g)
     :: BASE(w) != 0 && g_base[GRP(w, g)] == 0 && gen[w] ->
        superseded[w] = g; abandoned[w] = 1; hurt = hurt | BIT(gen[w])
#ifdef MUTANT_MESSAGE
     :: BASE(w) != 0 && g_base[GRP(w, g)] != 0 && thread[w] == BOUNDARY -> switch(w, g)
#endif
     :: else
     fi
  :: else
  fi
}

inline on_prepare(w, g, a, b, h) {
  if
  :: order[w] == g && g > gen[w] && lead[g] != w && (BASE(w) == 0 || BASE(w) == b) ->
     if
     :: g_attempt[GRP(w, g)] >= a -> if :: BUILT(w, g) -> send_prepared(w, g) :: else fi
     :: else -> if :: LOST(g) -> skip :: else -> build(w, g, a, b, h); on_built(w, g) fi
     fi
  :: else
  fi
}

inline on_built(w, g) {
  printf("STORY %d has prepared %d, attempt %d\n", w, g, g_attempt[GRP(w, g)]);
  g_built[GRP(w, g)] = 1;
  if
  :: lead[g] != w -> send_prepared(w, g)
  :: else
  fi
}

/* What an order makes void is not kept in flight: its receiver would do nothing with it. */
inline drop_stale(w) {
  for (j : 0 .. N - 1) {
    if :: ready_g[AT(j, w)] < order[w] -> clear_ready(j, w) :: else fi;
    if :: prepared_g[AT(j, w)] < order[w] -> clear_prepared(j, w) :: else fi;
    if :: prepare_g[AT(j, w)] < order[w] -> clear_prepare(j, w) :: else fi
  }
}

inline on_order(w, g) {
  printf("STORY %d hears order %d (members %d, leader %d, broken %d)\n", w, g, roster[g], lead[g], told[g]);
  order[w] = g; arrived[w] = 1;
  if :: thread[w] == STARTING -> thread[w] = WAITING :: else fi;
  drop_stale(w);
  check_broken(w);
  clear_campaign(w); c_attempt[w] = 0;
  campaign[w] = LEADS(w);
  advance(w)
}

inline on_failed(w) {
  printf("STORY %d stops in %d, applied %d\n", w, gen[w], applied[w]);
  assert(gen[w] > 0);
  thread[w] = WAITING;
  stopped[w] = 1; abandoned[w] = 1; decided[w] = 0; proposed[w] = 0; word[w] = 0; target[w] = 0; hurt = hurt | BIT(gen[w]);
  if
  :: superseded[w] -> who = superseded[w]; switch(w, who)
  :: else -> advance(w)
  fi
}

/* ---- the training thread (worker/trainer.py) and the collective ---- */

/* (c) All who complete a step do so in one generation, from one state, and nobody in it is further than that. Then everybody's
   `applied` is counted from the new step on. */
inline complete(g) {
  set = 0; top = NOTHING; k = 0;
  for (j : 0 .. N - 1) {
    if
    :: IN(roster[g], j) ->
       assert(gen[j] == g && !dead[j] && !left[j]);
 #ifdef MUTANT_WORD
       if :: lead[g] == j -> k = proposed[j] :: else fi;
#else
       if :: proposed[j] > k -> k = proposed[j] :: else fi;
#endif
       if :: applied[j] > top -> top = applied[j] :: else fi;
       if :: !joining[j] -> set = set | BIT(j) :: else fi
    :: else
    fi
  }
  assert(set != 0 && top != NOTHING);
  STEPPED(k || set != roster[g]);
  for (j : 0 .. N - 1) { if :: IN(set, j) -> assert(applied[j] == top) :: else fi }
  if :: top == NEWEST -> slide() :: else -> top++ fi;
  for (j : 0 .. N - 1) {
    if
    :: IN(roster[g], j) -> thread[j] = RESULT; word[j] = k; target[j] = top
    :: else
    fi
  }
}

inline down(x) { if :: x > 1 -> x-- :: else fi }

inline slide() {
  for (j : 0 .. N - 1) { down(applied[j]); down(target[j]) }
  for (j : 0 .. N * N - 1) { down(ready_applied[j]); down(prepared_applied[j]); down(r_applied[j]) }
}

#define ARRIVED_IN(g, x)  (!IN(roster[g], x) || !dead[x] && gen[x] == g && thread[x] == COLLECTIVE)
#define ALL_IN(g)         (ARRIVED_IN(g, 0) && ARRIVED_IN(g, 1) && ARRIVED_IN(g, 2))

inline start_step(w) {
  decided[w] = 0;
  proposed[w] = ((ALL_PREPARED(w) && c_base[w] == gen[w]) -> order[w] : 0);
  thread[w] = COLLECTIVE;
  printf("STORY %d begins a step of %d, proposes %d\n", w, gen[w], proposed[w]);
  /* (b) nobody waits for one that has left this generation */
  for (j : 0 .. N - 1) { assert(!(IN(roster[gen[w]], j) && left[j] && gen[j] == gen[w])) }
  if :: GOES_ON(gen[w]) && ALL_IN(gen[w]) -> complete(gen[w]) :: else fi
}

/* (b) Whoever is left behind by a leaver knows: it has the result of the same step, has acted on it, or stands still. */
inline check_leave(w, g) {
  for (j : 0 .. N - 1) {
    if
    :: j != w && IN(roster[g], j) && !dead[j] && !left[j] && gen[j] == g ->
       assert(thread[j] == RESULT && word[j] == decided[w] || thread[j] == BOUNDARY && decided[j] == decided[w] || stopped[j])
    :: else
    fi
  }
}

inline leave(w) {
  printf("STORY %d leaves %d, decided %d\n", w, gen[w], decided[w]);
  check_leave(w, gen[w]);
  left[w] = 1; thread[w] = GONE; forget(w)
}

/* Whoever is gone says and hears nothing more; what it has sent is still on its way. */
inline forget(w) {
  abandoned[w] = 0; stopped[w] = 0; attempt[w] = 0; order[w] = 0;
  campaign[w] = 0; c_attempt[w] = 0; clear_campaign(w);
  proposed[w] = 0; decided[w] = 0; word[w] = 0; target[w] = 0; joining[w] = 0; superseded[w] = 0;
  for (j : 1 .. G) { build(w, j, 0, 0, 0) }
  for (j : 0 .. N - 1) {
    clear_ready(j, w); clear_prepared(j, w); clear_prepare(j, w); clear_commit(j, w)
  }
}

inline boundary(w) {
  if
  :: abandoned[w] || stopped[w] -> on_failed(w)
  :: else ->
     if
#ifdef MUTANT_LEAVER
     :: !decided[w] && order[w] > gen[w] && !IN(roster[order[w]], w) -> leave(w)
     :: !decided[w] && !(order[w] > gen[w] && !IN(roster[order[w]], w)) -> start_step(w)
#else
     :: !decided[w] -> start_step(w)
#endif
     :: else ->
        if
        :: !BUILT(w, decided[w]) -> leave(w)
        :: else ->
           if
           :: lead[decided[w]] == w ->
              for (j : 0 .. N - 1) {
                if
                :: IN(roster[decided[w]], j) && !IN(roster[gen[w]], j) && !dead[j] ->
                   commit_g[AT(w, j)] = decided[w]; commit_attempt[AT(w, j)] = g_attempt[GRP(w, decided[w])]
                :: else
                fi
              }
           :: else
           fi;
           who = decided[w]; switch(w, who)
        fi
     fi
  fi
}

/* WordRead and StepApplied. */
inline step_applied(w) {
  printf("STORY %d applies a step of %d, word %d\n", w, gen[w], word[w]);
  assert(word[w] == 0 || word[w] > gen[w]);
  decided[w] = word[w];
  if :: word[w] != proposed[w] -> proposed[w] = 0 :: else fi;
  assert(applied[w] == NOTHING || target[w] > applied[w] || target[w] == 1);
  applied[w] = target[w];
  word[w] = 0; target[w] = 0; joining[w] = 0;
  thread[w] = BOUNDARY
}

#define IN_STEP(w)  (thread[w] == COLLECTIVE || thread[w] == RESULT)

/* A step's end and the next one's begin are one piece: what could come between can as well come before, but for a failure. */
proctype trainer(byte w) {
end:
  do
  :: d_step { thread[w] == BOUNDARY -> boundary(w); skip }
  :: d_step { thread[w] == RESULT -> step_applied(w); boundary(w); skip }
  :: d_step { thread[w] == RESULT && (HURT(gen[w]) || abandoned[w]) -> step_applied(w); on_failed(w); NEWS }
  :: d_step { IN_STEP(w) && (HURT(gen[w]) || abandoned[w]) -> on_failed(w); NEWS }
#ifdef ENDS
  :: d_step { thread[w] == COLLECTIVE && GOES_ON(gen[w]) && ALL_IN(gen[w]) -> complete(gen[w]); skip }
#endif
  od
}

/* ---- the control thread: orders, fellow workers, communicators that stand ---- */

#define HEARS(w)  (thread[w] != GONE)

inline take_ready(w, f) {
  k = ready_g[AT(f, w)]; m = ready_base[AT(f, w)]; n = ready_applied[AT(f, w)];
  clear_ready(f, w);
  if
  :: k == gen[w] && lead[k] == w -> repeat_commit(w, f)
  :: k != gen[w] && k == order[w] -> who = m; what = n; on_ready(w, f, who, what)
  :: else
  fi
}

inline take_prepare(w, l) {
  k = prepare_g[AT(l, w)]; m = prepare_attempt[AT(l, w)]; n = prepare_base[AT(l, w)]; set = prepare_holders[AT(l, w)];
  clear_prepare(l, w);
  on_prepare(w, k, m, n, set)
}

inline take_prepared(w, f) {
  k = prepared_g[AT(f, w)]; m = prepared_attempt[AT(f, w)]; who = prepared_base[AT(f, w)]; what = prepared_applied[AT(f, w)];
  clear_prepared(f, w);
  if
  :: k == gen[w] && lead[k] == w -> repeat_commit(w, f)
  :: k != gen[w] && k == order[w] && campaign[w] && m == c_attempt[w] -> on_prepared(w, f, who, what)
  :: else
  fi
}

inline take_commit(w, l) {
  k = commit_g[AT(l, w)]; m = commit_attempt[AT(l, w)];
  clear_commit(l, w);
  who = k; on_commit(w, who, m)
}

/* Who stands still asks the leader of an overtaken order whether it has been committed; question and answer are one here. */
#define OVERTAKEN_ORDER(w, g)  (g < order[w] && BASE(w) == 0 && g > gen[w] && BUILT(w, g) && !MISSED(w, g) && lead[g] != w && \
                                gen[lead[g]] == g && HEARS(lead[g]) && !commit_g[AT(lead[g], w)])

/* A follower repeats its Ready for as long as it waits. Only the repeats that tell its leader something are modelled. */
#define LEADER(w)   lead[order[w]]
#define UNHEARD(w)  (campaign[LEADER(w)] && order[LEADER(w)] == order[w] && r_base[AT(LEADER(w), w)] != BASE(w) || NEWS_LOST(w))
#ifdef LOSSY
#define NEWS_LOST(w) (gen[LEADER(w)] == order[w] || !IN(c_prepared[LEADER(w)], w))
#else
#define NEWS_LOST(w) 0
#endif
#define RETRIES(w)  (order[w] > gen[w] && LEADER(w) != w && IN(roster[order[w]], w) && BASE(w) != UNKNOWN && \
                     !ready_g[AT(w, LEADER(w))] && HEARS(LEADER(w)) && UNHEARD(w))

#define DUE(w, g)  (g_attempt[GRP(w, g)] && !g_built[GRP(w, g)])

/* Ready waits until the leader has the order (`_early` in the machine). */
proctype control(byte w) {
end:
  do
  :: d_step { HEARS(w) && IN(started, w) && order[w] < newest -> on_order(w, newest); NEWS }
  :: d_step { HEARS(w) && IN(started, w) && order[w] + 1 < newest -> who = order[w] + 1; on_order(w, who); NEWS }
#define HEAR(f)                                                                                                  \
  :: d_step { HEARS(w) && ready_g[AT(f, w)] && ready_g[AT(f, w)] <= order[w] -> take_ready(w, f); NEWS }               \
  :: d_step { HEARS(w) && prepare_g[AT(f, w)] -> take_prepare(w, f); NEWS }                                            \
  :: d_step { HEARS(w) && prepared_g[AT(f, w)] -> take_prepared(w, f); NEWS }                                          \
  :: d_step { HEARS(w) && commit_g[AT(f, w)] -> take_commit(w, f); NEWS }
  HEAR(0)
  HEAR(1)
  HEAR(2)
  :: d_step { HEARS(w) && LEADS(w) && DUE(w, order[w]) && !LOST(order[w]) ->
              on_built(w, order[w]); who = BASE(w); what = SAID(w);
              if :: campaign[w] && g_attempt[GRP(w, order[w])] == c_attempt[w] && who != UNKNOWN -> on_prepared(w, w, who, what) :: else fi; NEWS }
  :: d_step { HEARS(w) && RETRIES(w) -> advance(w); NEWS }
#define ASK_OVERTAKEN(g)                                                                                         \
  :: d_step { HEARS(w) && OVERTAKEN_ORDER(w, g) -> repeat_commit(lead[g], w); NEWS }
  ASK_OVERTAKEN(1)
  ASK_OVERTAKEN(2)
  ASK_OVERTAKEN(3)
  ASK_OVERTAKEN(4)
  ASK_OVERTAKEN(5)
  ASK_OVERTAKEN(6)
  ASK_OVERTAKEN(7)
  ASK_OVERTAKEN(8)
  ASK_OVERTAKEN(9)
#ifdef LOSSY
  :: d_step { HEARS(w) && timeouts && campaign[w] && c_attempt[w] && !ALL_PREPARED(w) -> timeouts--; prepare(w); NEWS }
#define LOSE(f)                                                                                                  \
  :: d_step { ready_g[AT(f, w)] -> clear_ready(f, w); NEWS }                                                     \
  :: d_step { prepare_g[AT(f, w)] -> clear_prepare(f, w); NEWS }                                                 \
  :: d_step { prepared_g[AT(f, w)] -> clear_prepared(f, w); NEWS }                                               \
  :: d_step { commit_g[AT(f, w)] -> clear_commit(f, w); NEWS }
  LOSE(0)
  LOSE(1)
  LOSE(2)
#endif
  od
}

/* ---- faults ---- */

inline crash(w) {
  printf("STORY %d is killed in %d\n", w, gen[w]);
  dead[w] = 1; thread[w] = GONE; faults--; forget(w)
}

proctype fault() {
end:
  do
#ifdef GLITCH
  :: d_step { faults && IN_STEP(0) -> faults--; on_failed(0); NEWS }
  :: d_step { faults && IN_STEP(1) -> faults--; on_failed(1); NEWS }
  :: d_step { faults && IN_STEP(2) -> faults--; on_failed(2); NEWS }
#else
  :: d_step { faults && IN(started, 0) && HEARS(0) -> crash(0); NEWS }
  :: d_step { faults && IN(started, 1) && HEARS(1) -> crash(1); NEWS }
  :: d_step { faults && IN(started, 2) && HEARS(2) -> crash(2); NEWS }
#endif
  od
}

/* ---- the controller (controller/jobs/generations.py); reports reach it at once, and it takes its time ---- */

inline with_state(r) {  /* set: the workers of `r` that have the state */
  set = 0;
  for (j : 0 .. N - 1) { if :: IN(r, j) && HAS_STATE(j) -> set = set | BIT(j) :: else fi }
}

inline usable(r) {
  set = 0;
  for (j : 0 .. N - 1) { if :: IN(r, j) && USABLE(j) -> set = set | BIT(j) :: else fi }
}

inline choose_leader(r) {  /* who: keeps the present leader while it can; else the first of those that are furthest */
  with_state(r);
  k = lead[newest];
  if
  :: newest && IN(r, k) && USABLE(k) && (IN(set, k) || set == 0) -> who = k
  :: else ->
     top = NOTHING; who = UNKNOWN;
     for (j : 0 .. N - 1) {
       if
       :: set == 0 && IN(r, j) && who == UNKNOWN -> who = j
       :: set && IN(set, j) && applied[j] > top -> who = j; top = applied[j]
       :: else
       fi
     }
  fi
}

inline give(r, l) {
  printf("STORY order %d: members %d, leader %d, broken %d\n", newest + 1, r, l, broken);
  assert(newest < G && r);
  newest++;
  roster[newest] = r; lead[newest] = l; started = started | (r);
#ifndef MUTANT_BROKEN
  told[newest] = broken
#endif
}

inline break_by_loss(w) {
  noticed = noticed | BIT(w); applied[w] = NOTHING; reported[w] = 0;
  for (j : 1 .. newest) { if :: j >= KNOWN && IN(roster[j], w) -> broken = broken | BIT(j) :: else fi }
}

/* broken_by_report: `w` stands still in `gen[w]`, so it will come to no later order by a step of it, unless that knew. */
inline find_broken(w) {
  gens = 0;
  if
  :: USABLE(w) && gen[w] && (abandoned[w] || stopped[w]) ->
     for (j : 1 .. newest) {
       if :: j >= gen[w] && IN(roster[j], w) && !IN(told[j], gen[w]) -> gens = gens | BIT(j) | BIT(gen[w]) :: else fi
     }
  :: else
  fi
}

#define UNNOTICED(x) (dead[x] && !IN(noticed, x))
#define BROKEN_AT(x) (USABLE(x) && gen[x] && (abandoned[x] || stopped[x]) && reported[x] != gen[x])
#define HURT_MEMBER(x) (IN(roster[newest], x) && !USABLE(x))
#define UNTOLD       ((broken & ~told[newest]) >> KNOWN)
#define WOUNDED      (IN(broken, newest) || HURT_MEMBER(0) || HURT_MEMBER(1) || HURT_MEMBER(2) || UNTOLD)
#define ANY_STATE    (HAS_STATE(0) || HAS_STATE(1) || HAS_STATE(2))

inline recover() {
  k = 0;
  for (j : 0 .. N - 1) { if :: IN(roster[newest], j) && USABLE(j) && arrived[j] -> k = k | BIT(j) :: else fi }
  with_state(k);
  if :: set == 0 -> with_state(7); k = k | set :: else fi;
  m = k; choose_leader(m); give(m, who);
  recovery = 1; joined = 0
}

/* Nobody has the state (yet, or any more). */
inline start_over() {
  usable(roster[newest]);
  if :: set == 0 -> usable(7) :: else fi;
  if
  :: set == 0 -> over = 1
  :: else -> m = set; choose_leader(m); give(m, who); recovery = 0; joined = 0
  fi
}

/* The order has named a leader that those who train do not know. */
#define MISLED  (newest > KNOWN && KNOWN && !IN(roster[KNOWN], lead[newest]) && !HAS_STATE(lead[newest]))

inline set_right() {
  with_state(roster[newest]);
  if :: set == 0 -> with_state(7); m = roster[newest] | set; joined = 1 :: else -> m = roster[newest]; joined = 0 fi;
  choose_leader(m); give(m, who); recovery = 0
}

#define HANDED_ON(x)  (!IN(roster[newest], x) || HAS_STATE(x) && gen[x] >= newest)
#define ON_THE_WAY    (joined && !(KNOWN >= newest && HANDED_ON(0) && HANDED_ON(1) && HANDED_ON(2)))

/* Who must stay in the next roster, so that what they know is not lost: one of those with the state. While nobody is known to
   have it, the leader of the newest order: it may have committed that, and begun. Else two orders without a common member could
   both begin, each from nothing. */
#ifdef MUTANT_DISJOINT
#define KEEPERS         (newest && ANY_STATE -> WITH_STATE : 7)
#else
#define KEEPERS         (newest == 0 -> 7 : (ANY_STATE -> WITH_STATE : BIT(lead[newest])))
#endif
#define BITS(x0, x1, x2)  ((x0) | ((x1) << 1) | ((x2) << 2))
#define WANTED          (plan[issued] & BITS(USABLE(0), USABLE(1), USABLE(2)))
#define WITH_STATE      BITS(HAS_STATE(0), HAS_STATE(1), HAS_STATE(2))
/* The union of old and new has been ordered, and nobody who is wanted can be left alone yet. */
#define UNION_STANDS    (newest && WANTED && !(WANTED & KEEPERS) && !(WANTED & ~roster[newest]) && (roster[newest] & KEEPERS))

inline towards_target() {
  m = WANTED; set = KEEPERS;
  if
  :: newest && (m == 0 || m == roster[newest]) -> issued++
  :: (!newest || m != 0 && m != roster[newest]) && (m & set) ->
     issued++; choose_leader(m); give(m, who); recovery = 0; joined = 0
  :: newest && m && m != roster[newest] && !(m & set) ->
     m = m | set; choose_leader(m); give(m, who); recovery = 0; joined = 1
  fi
}

inline learn() {
  for (i : 0 .. N - 1) {
    if :: UNNOTICED(i) -> break_by_loss(i) :: else fi;
    if :: BROKEN_AT(i) -> reported[i] = gen[i]; find_broken(i); broken = broken | gens :: else fi
  }
}

inline answer() {
  if
  :: WOUNDED && ANY_STATE -> recover()
  :: WOUNDED && !ANY_STATE -> start_over()
  :: else
  fi
}

#define RECOVERING  (recovery && newest > KNOWN)
#define BAD_NEWS    (UNNOTICED(0) || UNNOTICED(1) || UNNOTICED(2) || BROKEN_AT(0) || BROKEN_AT(1) || BROKEN_AT(2))

/* (e) The newest order is reached by all of its members, for good. */
#define THERE(x)  (!IN(roster[newest], x) || !dead[x] && !left[x] && gen[x] == newest && !abandoned[x] && applied[x] != NOTHING)
#define REACHED   (over || newest && issued == PLANNED && THERE(0) && THERE(1) && THERE(2))

proctype controller() {
  do
  :: d_step { newest && !over && (BAD_NEWS || WOUNDED) -> learn(); answer(); NEWS }
  :: d_step { newest && !over && !WOUNDED && ANY_STATE && !RECOVERING && MISLED -> set_right(); NEWS }
  :: d_step { !over && issued < PLANNED && (newest == 0 || (ANY_STATE || !KNOWN) && !WOUNDED && !RECOVERING && !MISLED && !ON_THE_WAY && !UNION_STANDS) ->
              towards_target(); NEWS }
#ifdef ENDS
  :: timeout -> assert(REACHED); break
#else
  :: over -> break
#endif
  od
}

init {
  d_step { for (i : 0 .. N - 1) { clear_campaign(i) } }
  if
  :: SCENARIO == 1 -> plan[0] = 1; plan[1] = 7; plan[2] = 3   /* grow, then shrink */
  :: SCENARIO == 2 -> plan[0] = 3; plan[1] = 6; plan[2] = 4   /* the leader leaves, then the next one */
  :: SCENARIO == 3 -> plan[0] = 1; plan[1] = 2; plan[2] = 4   /* migration, twice: by way of unions */
  :: SCENARIO == 4 -> plan[0] = 3; plan[1] = 7; plan[2] = 5   /* one comes, another one leaves */
  :: SCENARIO == 5 -> plan[0] = 7; plan[1] = 3; plan[2] = 2   /* shrink, and the leader leaves */
  :: SCENARIO == 6 -> plan[0] = 3; plan[1] = 6; plan[2] = 7   /* the first order is overtaken, and its leader wanted again */
  fi;
#ifdef WARM
  d_step {  /* the first order has been reached */
    newest = 1; roster[1] = plan[0]; lead[1] = (IN(plan[0], 0) -> 0 : 1); started = plan[0]; issued = 1;
    for (i : 0 .. N - 1) {
      if
      :: IN(plan[0], i) ->
         arrived[i] = 1; gen[i] = 1; attempt[i] = 1; applied[i] = NEWEST; order[i] = 1; thread[i] = BOUNDARY
      :: else
      fi
    }
  }
#endif
  atomic {
    run controller(); run fault();
    for (i : 0 .. N - 1) { run trainer(i); run control(i) }
  }
}

#ifdef LIVENESS
ltl reached { <> [] REACHED }
#endif
