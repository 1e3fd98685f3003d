/* Which of two controllers leads: controller/election/machine.py at a store with leases, with the guard of writes (controller/turn.py)
   and the fence of an agent (it ignores terms lower than the highest that it has seen).

   Time is counted in ticks, which come whenever they like. A lease is LEASE ticks long for the store, and one tick (the margin)
   shorter for its holder. The store counts from when a request has reached it, the holder from when it has sent it. A controller
   may sleep between any two of its steps, of which the look at its clock and the message that it then sends are two.

   Writes are orders: order n is the n-th record in the store. `known` is how many of them a controller knows of.

   MUTANT_x  the protocol with a mistake in it: the check must find it                                                          */

#define N      2   /* controllers */
#define LEASE  2   /* ticks */
#ifdef MUTANT_MARGIN
#define MINE   (LEASE + 1)
#else
#define MINE   (LEASE - 1)  /* by the holder's own count */
#endif
#ifndef TERMS
#define TERMS  2   /* reigns, at most */
#endif
#define ORDERS 2   /* writes */
#define NOBODY 2
#define OLD    (LEASE + 1)  /* no age is counted any further */

/* ---- the store ---- */
byte holder = NOBODY;     /* of the leadership key */
byte reigns;              /* so many have begun */
byte written;             /* orders in the store */
byte age[N];              /* of each lease, since its last renewal reached the store; OLD: there is none */

/* ---- the controllers ---- */
mtype = { FOLLOWING, CATCHING_UP, LEADING };
mtype state[N] = FOLLOWING;
byte mine[N];             /* its reign */
byte belief[N];           /* age of its lease, since the last renewal that was answered had been sent */
byte sent[N];             /* since the renewal under way was sent */
byte known[N];
bit asking[N], answered[N];
bit checked[N];           /* it has looked at its clock, and is about to send */

/* ---- messages to the agent: any may come late, none comes twice ---- */
bit flying[N];            /* one of each controller at a time */
byte fly_reign[N], fly_order[N];
byte high;                /* the highest term that the agent has seen */
byte obeyed;              /* the reign of the last order that it has carried out */
byte before;              /* how many orders were in the store when the last reign began */

/* The term of a reign. */
#ifdef MUTANT_TERM
#define TERM(reign)  ((reign) > 0)
#else
#define TERM(reign)  (reign)
#endif

#define VALID(c)  (state[c] != FOLLOWING && belief[c] < MINE)

inline lose(c) { state[c] = FOLLOWING; mine[c] = 0; checked[c] = 0; asking[c] = 0; answered[c] = 0; known[c] = 0 }

/* (a) Never do two controllers believe that they lead. */
inline check_one() { assert(!(VALID(0) && VALID(1))) }

proctype controller(byte c) {
end:
  do
  /* it wins: the key is vacant, its lease lives, the term is recorded in the same transaction */
  :: atomic { state[c] == FOLLOWING && holder == NOBODY && reigns < TERMS ->
       age[c] = 0; belief[c] = 0; holder = c;
       reigns++; mine[c] = reigns; state[c] = CATCHING_UP; before = written;
       check_one() }
  /* it has caught up: it knows what is in the store, where nobody has written since it has won, or another reign has begun */
  :: atomic { state[c] == CATCHING_UP && VALID(c) ->
#ifdef MUTANT_MIRROR
       if :: known[c] = written :: written > 0 -> known[c] = written - 1 fi;
#else
       known[c] = written;
#endif
       state[c] = LEADING }
  /* renewing: sent, then answered; the store may end the lease meanwhile */
  :: atomic { state[c] != FOLLOWING && !asking[c] -> asking[c] = 1; answered[c] = 0; sent[c] = 0 }
  :: atomic { asking[c] && !answered[c] ->
       if
       :: age[c] < OLD && holder == c -> age[c] = 0; answered[c] = 1
       :: else -> asking[c] = 0  /* not known any more: the answer is lost, or comes too late to count */
       fi }
  :: atomic { asking[c] && answered[c] ->
#ifdef MUTANT_ANSWER
       belief[c] = 0;
#else
       if :: VALID(c) -> belief[c] = sent[c] :: else fi;
#endif
       asking[c] = 0; answered[c] = 0;
       check_one() }
  :: atomic { asking[c] -> asking[c] = 0; answered[c] = 0 }  /* no answer */
  /* it looks at its clock: what it believed is over */
  :: atomic { state[c] != FOLLOWING && !VALID(c) -> lose(c) }
  /* record, then act: the write is guarded by the key */
  :: atomic { state[c] == LEADING && written < ORDERS ->
#ifdef MUTANT_GUARD
       written++; known[c]++;
       assert(holder == c)  /* (b) no write of a reign that is over */
#else
       if
       :: holder == c && mine[c] == reigns -> assert(known[c] == written); written++; known[c]++  /* (c) */
       :: else -> lose(c)
       fi
#endif
     }
#ifdef MUTANT_ACT_FIRST
  /* it sends what it has not recorded yet */
  :: atomic { state[c] == LEADING && checked[c] && !flying[c] && known[c] < ORDERS ->
       flying[c] = 1; fly_reign[c] = mine[c]; fly_order[c] = known[c] + 1; checked[c] = 0 }
#endif
  /* it looks at its clock, then it sends: it may sleep between the two */
#ifdef MUTANT_CLOCK
  :: atomic { state[c] == LEADING && !checked[c] -> checked[c] = 1 }
#else
  :: atomic { state[c] == LEADING && VALID(c) && !checked[c] -> checked[c] = 1 }
#endif
  :: atomic { state[c] == LEADING && checked[c] && !flying[c] && known[c] > 0 ->
       flying[c] = 1; fly_reign[c] = mine[c]; fly_order[c] = known[c]; checked[c] = 0 }
  /* (c) an answer to who only looks holds all that was recorded when it looked at its clock */
  :: atomic { state[c] == LEADING && checked[c] ->
#ifdef MUTANT_CLOCK
       assert(known[c] == written);
#else
       assert(!VALID(c) || known[c] == written);
#endif
       checked[c] = 0 }
  od
}

/* (d) An agent obeys no order of a reign that is over for it; (e) and none that is not recorded, or of an earlier reign and was not
   recorded when the present one began: whoever leads knows of all that any agent has been told. */
active proctype agent() {
  byte c;
end:
  do
  :: atomic { flying[0] -> c = 0; goto comes }
  :: atomic { flying[1] -> c = 1; goto comes }
  od;
comes:
  atomic {
    flying[c] = 0;
    if
#ifndef MUTANT_FENCE
    :: TERM(fly_reign[c]) < high
#endif
    :: else ->
       assert(fly_reign[c] >= obeyed);
       assert(fly_order[c] <= (fly_reign[c] == reigns -> written : before));
       if :: TERM(fly_reign[c]) > high -> high = TERM(fly_reign[c]) :: else fi;
       obeyed = fly_reign[c]
    fi;
    fly_reign[c] = 0; fly_order[c] = 0; c = 0
  }
  goto end
}

inline older(a) { if :: a < OLD -> a++ :: else fi }

/* Time passes. The store ends a lease some time after its end, never before. */
active proctype time() {
end:
  do
  :: atomic { holder != NOBODY ->
       older(age[0]); older(age[1]); older(belief[0]); older(belief[1]);
       if :: asking[0] -> older(sent[0]) :: else -> sent[0] = 0 fi;
       if :: asking[1] -> older(sent[1]) :: else -> sent[1] = 0 fi }
  :: atomic { holder != NOBODY && age[holder] >= LEASE -> age[holder] = OLD; holder = NOBODY }
  od
}

init { atomic { age[0] = OLD; age[1] = OLD; run controller(0); run controller(1) } }
