"""The Textual application of `elasticctl top`: pages, keys and prompts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from ...protocol.errors import ElasticError
from ..context import Context
from ..formatting import printable
from ..screens import sources
from ..screens.forecasts import FORECAST_S, forecast
from ..screens.sources import Cluster, Marks
from ..screens.tails import Stories, Tails
from ..screens.upstream import INTERVAL_S, CachedAnswer, Upstream
from . import views
from .lines import Lines
from .views import Item, cut

STALE_S = 8.0
LEAST_SERVERS = 4  # servers shown above the jobs even on a terminal with few lines
WORDS_HINT = "words that lines have"
PLACES_HINT = "jobs, history, quota, health, JOB, log JOB, why JOB, user NAME"
HELP = """\
j k, arrows   next, previous job; PgUp, PgDn: by screens; g, G: first, last
Enter, d      the job's page: GPUs over time, pauses of resizes, facts
l             the job's log, followed at its end
w             why the job has its GPUs, what would change that, and when a
              waiting job starts
m             only my jobs; all jobs
/             only lines with these words
:             go to: jobs, gpus, history, quota, health, help, JOB, log JOB,
              why JOB; user NAME: whose jobs come first
Esc           end a filter; back
?             this page
q             quit

GPUs by server: a letter for each GPU names its job, as the letter before
the job's name does. A dot is a free GPU, x one that takes no new work.
health has all that is to be said of servers and controllers, and events.
"""
KEYS = "Enter open  l log  w why  m mine  / filter  : go  ? help  Esc back  q quit"
PAGES = {
    "jobs": "home", "gpus": "gpus", "home": "home", "history": "history", "quota": "quota", "health": "health",
    "servers": "health", "nodes": "health", "events": "health", "controllers": "health", "help": "help",
}  # fmt: skip
OF_JOBS = {"job": "job", "log": "log", "logs": "log", "why": "why", "explain": "why"}


@dataclass(frozen=True)
class Page:
    """A page, of a job or of the cluster."""

    kind: str
    job: str = ""

    @property
    def every_s(self) -> float:
        return {"log": sources.LOG_S, "why": sources.EXPLAINED_S}.get(self.kind, INTERVAL_S)

    @property
    def points(self) -> bool:
        return self.kind in ("home", "history", "health")


HOME = Page("home")
Built = Callable[[int], Iterator[Item]]


class Top(App[None]):
    """`elasticctl top`."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { background: ansi_default; color: ansi_default; layers: base; }
    #head { height: 1; text-style: bold; }
    #banner { height: auto; max-height: 3; text-style: reverse; display: none; }
    #keys { height: 1; }
    #prompt { height: 1; border: none; padding: 0; display: none; background: ansi_default; }
    Lines { height: 1fr; background: ansi_default; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "step(1)"),
        Binding("k,up", "step(-1)"),
        Binding("pagedown,ctrl+d,ctrl+f,space", "page(1)"),
        Binding("pageup,ctrl+u,ctrl+b", "page(-1)"),
        Binding("g,home", "edge(False)"),
        Binding("G,end", "edge(True)"),
        Binding("enter", "open('job')"),
        Binding("d", "open('job')"),
        Binding("l", "open('log')"),
        Binding("w,e", "open('why')"),
        Binding("m", "mine"),
        Binding("slash", "ask('/')"),
        Binding("colon", "ask(':')"),
        Binding("question_mark,f1", "help"),
        Binding("escape", "leave", priority=True),
        Binding("q,ctrl+c", "quit"),
    ]

    def __init__(
        self, connect: Callable[[], Context], viewer: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(ansi_color=True)
        self._head = Static(id="head", markup=False)
        self._banner = Static(id="banner", markup=False)
        self.lines = Lines()
        self._prompt = Input(id="prompt", compact=True)
        self._keys = Static(KEYS, id="keys", markup=False)
        self._upstream = Upstream(connect, clock)
        self._viewer = viewer
        self._clock = clock
        self._stories = {thread: Stories() for thread in ("cluster", "jobs")}
        self._tails = Tails()
        self._marks = Marks()
        self._pages = [HOME]
        self._mine = False
        self._asks = ""  # the open prompt: "/" (filter), ":" (go to), or ""
        self._filter = ""
        self._left = ""  # job of the page that was closed last
        self._built: Built | None = None
        self._seen_s: float | None = None  # time of the shown data
        self._trouble = ""
        self._said = ""  # text of the screen's first line

    def compose(self) -> ComposeResult:
        yield from (self._head, self._banner, self.lines, self._prompt, self._keys)

    @property
    def page(self) -> Page:
        return self._pages[-1]

    def on_mount(self) -> None:
        self.lines.focus()
        self._said = "asks the controller …"
        self.set_interval(1.0, self._tell)
        self._load(anew=True)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw, False)

    # -- data

    def _load(self, anew: bool = False) -> None:
        """Load the page now, and again after its interval."""
        # `exclusive` cancels the worker of the previous page.
        self.run_worker(self._follow(self.page, anew), group="page", exclusive=True)

    async def _follow(self, page: Page, anew: bool) -> None:
        while True:
            try:
                seen, built, said = await self._asked(page)
                self._built, self._said = built, said
                self._seen_s, self._trouble = self._clock() - seen.age_s, seen.trouble
            except ElasticError as error:
                self._trouble = str(error)
                if anew:
                    self._built, self._said, self._seen_s = lambda width: iter(()), page.job or page.kind, None
            self._draw(anew)
            anew = False
            await asyncio.sleep(page.every_s)

    async def _asked(self, page: Page) -> tuple[CachedAnswer[object], Built, str]:
        """Return the answer for a page, the function that makes its lines, and the first line of the screen."""
        get, get_soon, job = self._upstream.get, self._upstream.at_hand, page.job
        match page.kind:
            case "home" | "gpus":
                found = await get("cluster", HOME, sources.cluster)
                self._marks.see(found.value.servers)
                said = " · ".join(found.value.summary())
                if page.kind == "gpus":
                    return found, lambda width: views.gpus(found.value, self._marks, width), said
                return found, lambda width: self._home(found.value, width), said
            case "job":
                stories = self._stories["jobs"]
                known = await get("jobs", page, lambda shared: sources.job(shared, job, stories))
                return known, lambda width: views.job_page(*known.value, width), job
            case "log":
                tail = await get("logs", page, self._tails.of(job).read, page.every_s)
                return tail, lambda width: views.log(tail.value, width), f"{job} · log"
            case "why":
                why = await get("explain", page, lambda shared: sources.explained(shared, job), page.every_s)
                starts = get_soon("forecasts", ("starts", job), lambda shared: forecast(shared, job), FORECAST_S)
                return why, lambda width: views.why(why.value, width, starts or ""), f"{job} · why"
            case "history":
                ended = await get("jobs", page, sources.ended)
                return ended, lambda width: views.ended(ended.value, width), "jobs that are over, the latest first"
            case "quota":
                quotas = await get("cluster", page, sources.quotas)
                return (
                    quotas,
                    lambda width: views.quotas(quotas.value, width),
                    "quotas: guaranteed, in use, borrowed, lent",
                )
            case "health":
                health = await get("cluster", page, lambda shared: sources.health(shared, self._stories["cluster"]))
                return health, lambda width: views.health(health.value, width), "health of servers and controllers"
        return CachedAnswer(None, 0.0, ""), lambda width: (Item((line,)) for line in HELP.splitlines()), "keys"

    def _home(self, found: Cluster, width: int) -> Iterator[Item]:
        most = max(LEAST_SERVERS, self.size.height // 3)
        return views.home(found, self._marks, self._viewer, self._mine, most, width)

    def _draw(self, anew: bool) -> None:
        """Show the last received data."""
        self._tell()
        if self._built is not None:
            self.lines.points = self.page.points
            self.lines.put(
                list(self._built(self.lines.room)), anew, self.page.kind == "log", self._left if anew else ""
            )

    def _tell(self) -> None:
        """Show the first line, and a banner while there is no new data."""
        said = f"filter: {self._filter} · {self._said}" if self._filter and self._asks != "/" else self._said
        self._head.update(Text(cut(said, max(20, self.size.width - 1))))
        age_s = None if self._seen_s is None else self._clock() - self._seen_s
        late = age_s is not None and age_s > max(STALE_S, 2 * self.page.every_s)
        why = self._trouble or ("no newer answer has come" if late else "")
        old = "" if age_s is None else f"This is {age_s:.0f} s old: "
        self._banner.update(Text(f"{old}{printable(why)}" if why else ""))
        self._banner.display = bool(why)

    # -- keys

    def action_step(self, by: int) -> None:
        self.lines.step(by)

    def action_page(self, by: int) -> None:
        self.lines.page(by)

    def action_edge(self, last: bool) -> None:
        self.lines.edge(last)

    def action_open(self, kind: str) -> None:
        job = self.page.job or (self.lines.current.job if self.lines.current is not None else "")
        if job and self.page != Page(kind, job):
            self._go(Page(kind, job))

    def action_help(self) -> None:
        if self.page.kind != "help":
            self._go(Page("help"))

    def action_mine(self) -> None:
        self._mine = not self._mine
        if self.page == HOME:
            self._draw(anew=True)

    def action_leave(self) -> None:
        """Close the prompt if one is open, else the filter, else the page."""
        if self._asks:
            self._close(keep=False)
        elif self._filter:
            self._set_filter("")
        elif len(self._pages) > 1:
            self._left = self._pages.pop().job
            self._load(anew=True)

    def _go(self, page: Page) -> None:
        self._set_filter("")
        self._left = ""
        self._pages = [HOME, page] if page.kind in PAGES.values() or not self.page.job else [*self._pages[:-1], page]
        if page == HOME:
            self._pages = [HOME]
        self._load(anew=True)

    # -- prompts

    def action_ask(self, sign: str) -> None:
        prompt = self._prompt
        self._asks = sign
        prompt.value = self._filter if sign == "/" else ""
        prompt.placeholder = WORDS_HINT if sign == "/" else PLACES_HINT
        prompt.display = True
        self._keys.update(f"{sign}  Enter: done  Esc: {'all lines' if sign == '/' else 'back'}")
        prompt.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if self._asks == "/":
            self._set_filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        asked, sign = event.value.strip(), self._asks
        self._close(keep=True)
        if sign == ":" and asked:
            self._command(asked)

    def _close(self, keep: bool) -> None:
        if self._asks == "/" and not keep:
            self._set_filter("")
        self._asks = ""
        self._prompt.display = False
        self._keys.update(KEYS)
        self.lines.focus()
        self._tell()

    def _set_filter(self, text: str) -> None:
        self._filter = text
        self.lines.filter(text)
        self._tell()

    def _command(self, text: str) -> None:
        """Go to the page that `text` names."""
        word, _, rest = text.partition(" ")
        rest = rest.strip()
        if word in ("q", "quit", "q!"):
            self.exit()
        elif word == "user" and rest:
            self._viewer = rest
            self._go(HOME)
        elif word in PAGES and not rest:
            self._go(Page(PAGES[word]))
        elif word in OF_JOBS and (rest or self.page.job):
            self._go(Page(OF_JOBS[word], rest or self.page.job))
        else:
            self._go(Page("job", text))
