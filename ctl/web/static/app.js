// Pages of `elasticctl web`. Data from the cluster becomes text nodes and attributes, never markup.

const POLL_MS = 2000, LOG_MS = 1000, EXPLAIN_MS = 10000, FORECAST_MS = 60000, STALE_S = 8, COLOURS = 12, MOST_LOG_LINES = 2000;
const SVG = "http://www.w3.org/2000/svg";
const $ = (id) => document.getElementById(id);

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== "" && value != null) made.setAttribute(name, value);
  made.append(...children.filter((child) => child != null));
  return made;
}
function shape(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
}
const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const jobPage = (job) => "/jobs/" + encodeURIComponent(job);
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
function ago(seconds) {
  const s = Math.round(seconds);
  return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min` : `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

// --- asking, and what is said while nothing answers

const state = { age: 0, at: 0, trouble: "", away: "", viewer: "" };

async function ask(path) {
  let answer;
  try {
    answer = await fetch("/api" + path, { headers: { Accept: "application/json" }, cache: "no-store" });
  } catch (error) {
    throw new Error("elasticctl web does not answer: it has ended, or the network is interrupted");
  }
  if (answer.status === 401) throw new Error("the token is not valid any more: open the address that elasticctl web has printed");
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const error = new Error(body.error || `elasticctl web answers ${answer.status}`);
    error.refused = answer.status < 500;
    throw error;
  }
  return body;
}

// Asks again and again while the page is visible. `take` puts an answer into the page, and returns false when no more will come.
function poll(path, every, take, main) {
  let timer = 0, running = false, over = false;
  const next = () => { clearTimeout(timer); timer = setTimeout(round, every); };
  async function round() {
    if (document.hidden || running || over) return;
    running = true;
    try {
      const { head, data } = await ask(typeof path === "function" ? path() : path);
      if (main) Object.assign(state, { age: head.age_s, at: performance.now(), trouble: head.trouble, away: "", viewer: head.viewer });
      over = take(data, head) === false;
    } catch (error) {
      if (main) state.away = error.message;
      over = take(null, null, error) === false;
    } finally {
      running = false;
      if (!over) next();
      if (main) { banner(); ready(); }
    }
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) round(); });
  round();
}

function banner() {
  const age = state.age + (performance.now() - state.at) / 1000;
  const stale = state.at && (state.trouble || state.away || age > STALE_S);
  const why = state.away || state.trouble;
  $("banner").hidden = !stale && !why;
  const old = state.at ? `This is ${ago(age)} old` : "There is no data yet";
  setText($("banner"), stale || why ? `${old}: ${why || "no newer answer has come"}. It goes on by itself.` : "");
}
setInterval(banner, 1000);

function ready() {
  if (document.documentElement.dataset.ready) return;
  document.documentElement.dataset.ready = String(Math.round(performance.now())); // ms since the page was opened
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

// --- marks of jobs: a letter and a colour, so that nothing depends on the colour

const marks = new Map();
function markOf(job) {
  if (!marks.has(job)) marks.set(job, marks.size);
  const number = marks.get(job);
  let letters = "";
  for (let rest = number; rest >= 0; rest = Math.floor(rest / 26) - 1) letters = String.fromCharCode(65 + (rest % 26)) + letters;
  return { letters, colour: "c" + (number % COLOURS) };
}

// --- tables of the commands

class Rows {
  constructor() {
    this.head = el("tr");
    this.table = el("table", {}, el("thead", {}, this.head));
    this.box = el("div", { class: "rows" }, this.table);
    this.bodies = [];
    this.known = new Map();
  }
  show(table, user) {
    this.table.classList.toggle("plain", !table.rows.some((row) => row[1].length));
    const titles = [...table.columns, ...(table.rows.some((row) => row[1].length) ? [[table.note, false]] : [])];
    this.head.replaceChildren(...titles.map(([title, right]) => el("th", { scope: "col", class: right ? "right" : "" }, title)));
    const seen = new Map(), mine = [], others = [];
    table.rows.forEach(([cells, notes], at) => {
      const link = table.links[at] || "", key = link || "#" + at;
      const row = this.known.get(key) || this.make(cells.length, link);
      this.fill(row, table.columns, cells, notes, link);
      row.dataset.text = [...cells.map((cell) => (Array.isArray(cell) ? cell[0] : cell)), ...notes].join(" ").toLowerCase();
      seen.set(key, row);
      (user && table.users[at] === user ? mine : others).push(row);
    });
    this.known = seen;
    const groups = mine.length ? [[`Jobs of ${user}`, mine], ["Other jobs", others]] : [["", others]];
    this.arrange(groups.filter(([, rows]) => rows.length), titles.length);
  }
  make(cells, link) {
    const first = el("th", { scope: "row" }, link ? el("a", { href: jobPage(link) }) : el("span"));
    const row = el("tr", {}, first);
    for (let at = 1; at < cells; at++) row.append(el("td"));
    row.append(el("td", { class: "note" }));
    return row;
  }
  fill(row, columns, cells, notes, link) {
    cells.forEach((cell, at) => {
      const [text, style] = Array.isArray(cell) ? cell : [cell, ""];
      const node = row.children[at];
      if (at === 0) {
        setText(node.lastChild, text);
        if (link && marks.has(link) !== (node.childNodes.length > 1)) {
          if (marks.has(link)) node.prepend(el("span", { class: "mark " + markOf(link).colour, "aria-label": "in the picture above" }, markOf(link).letters));
          else node.firstChild.remove();
        }
        return;
      }
      setText(node, text);
      const kind = [columns[at][1] ? "right" : "", style, text === "-" || text === "" ? "empty" : ""].filter(Boolean).join(" ");
      if (node.className !== kind) node.className = kind;
      if (node.dataset.title !== columns[at][0]) node.dataset.title = columns[at][0];
    });
    const note = row.lastChild;
    setText(note, notes.join("; "));
    note.hidden = !notes.length && matchMedia("(max-width: 640px)").matches;
  }
  arrange(groups, width) {
    while (this.bodies.length > groups.length) this.bodies.pop().remove();
    groups.forEach(([title, rows], at) => {
      const body = this.bodies[at] || (this.bodies[at] = this.table.appendChild(el("tbody")));
      const wanted = title ? [this.title(body, `${title} (${rows.length.toLocaleString("en")})`, width), ...rows] : rows;
      const there = body.children;
      if (there.length !== wanted.length || wanted.some((row, place) => there[place] !== row)) body.replaceChildren(...wanted);
    });
    filterRows();
  }
  title(body, text, width) {
    const row = body.querySelector("tr.group") || el("tr", { class: "group" }, el("th", { scope: "rowgroup" }));
    row.firstChild.colSpan = width;
    setText(row.firstChild, text);
    return row;
  }
}

const section = (id, title, ...children) => el("section", { id, "aria-label": title }, el("h2", {}, title), ...children);

// Pairs of a label and a text, [label, text, kind]. Only what differs is touched, so that a selection stays.
function showFacts(list, facts) {
  while (list.children.length > 2 * facts.length) list.lastChild.remove();
  while (list.children.length < 2 * facts.length) list.append(el(list.children.length % 2 ? "dd" : "dt"));
  facts.forEach(([label, text, kind], at) => {
    const [name, value] = [list.children[2 * at], list.children[2 * at + 1]];
    setText(name, label);
    setText(value, text);
    if (value.className !== (kind || "")) value.className = kind || "";
  });
}

// Makes the children of a node anew if the data that they show has changed.
const shownData = new WeakMap();
function redraw(node, data, make) {
  const text = JSON.stringify(data);
  if (shownData.get(node) === text) return;
  shownData.set(node, text);
  node.replaceChildren(...make(data));
}

// --- filter, and whose jobs come first; both are part of the address

const query = new URLSearchParams(location.search);
function remember(name, value) {
  if (value) query.set(name, value); else query.delete(name);
  query.delete("token");
  const text = query.toString();
  history.replaceState(null, "", location.pathname + (text ? "?" + text : "") + location.hash);
}
function filterRows() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const node of document.querySelectorAll("[data-text]")) {
    const hidden = !words.every((word) => node.dataset.text.includes(word));
    if (node.hidden !== hidden) node.hidden = hidden;
  }
}
function user() { return query.get("user") ?? localStorage.getItem("user") ?? state.viewer; }
function offerUsers(users) {
  $("mine").hidden = false;
  const box = $("user"), all = [...new Set([user(), state.viewer, ...users])].filter(Boolean).sort();
  const known = [...box.options].map((option) => option.value);
  if (all.length + 1 === known.length && all.every((name, at) => name === known[at + 1])) return;
  box.replaceChildren(new Option("nobody", "-"), ...all.map((name) => new Option(name, name)));
  box.value = user();
}

// --- pages

function clusterPage(main) {
  const summary = el("ul", { class: "summary" }), servers = el("ul", { class: "servers", tabindex: "0", "aria-label": "Servers" });
  const none = el("p", { class: "remark" }), refused = el("p", { class: "trouble" }), rows = new Rows();
  main.append(summary, section("servers", "GPUs by server", servers), section("jobs", "Jobs", none, rows.box, refused));
  let again = () => {};
  $("user").addEventListener("change", () => again());
  poll("/cluster", POLL_MS, (data, head, error) => {
    if (error) return;
    again = () => rows.show(data.jobs, user());
    redraw(summary, [...data.summary, `as of ${data.time}`], (texts) => texts.map((text) => el("li", {}, text)));
    drawServers(servers, data.servers);
    offerUsers(data.jobs.users);
    rows.show(data.jobs, user());
    rows.box.hidden = !data.jobs.rows.length;
    setText(none, data.jobs.rows.length ? "" : "no unfinished jobs; History has those that are over");
    setText(refused, data.refused.join("\n"));
  }, true);
}

const cards = new Map(); // by server, with the data that each shows: a card that has not changed keeps the keyboard's focus
function drawServers(list, servers) {
  const wanted = servers.map((server) => {
    const text = JSON.stringify(server), known = cards.get(server.server);
    if (known?.text === text) return known.card;
    const card = drawServer(server);
    cards.set(server.server, { text, card });
    return card;
  });
  if (list.children.length !== wanted.length || wanted.some((card, at) => list.children[at] !== card)) list.replaceChildren(...wanted);
  filterRows();
}

function drawServer(server) {
  const gpus = el("div", { class: "gpus" });
  for (const [first, many, job, barred] of server.parts) {
    const where = many > 1 ? `GPUs ${first} to ${first + many - 1}` : `GPU ${first}`;
    let box;
    if (job) {
      const mark = markOf(job), why = barred ? `; no new work: ${barred}` : "";
      box = el("a", { href: jobPage(job), class: mark.colour, title: `${where}: ${job}${why}` }, el("b", {}, (barred ? "×" : "") + mark.letters), el("span", {}, job));
    } else {
      box = el("span", { class: barred ? "shut" : "", title: `${where}: ${barred || "free"}` }, barred ? "×" : "·");
    }
    box.setAttribute("aria-label", box.title);
    box.style.gridColumn = `span ${many}`;
    gpus.append(box);
  }
  const head = el("div", { class: "head" }, el("b", { title: server.kind }, server.server), el("span", { class: "state " + server.state[1] }, server.state[0]),
    el("span", { class: "free" }, server.free === "-" ? "" : `${server.free} free`));
  const item = el("li", { title: server.used }, head, server.parts.length ? gpus : null, server.notes.length ? el("p", { class: "notes" }, server.notes.join("; ")) : null);
  item.dataset.text = [server.server, server.state[0], server.kind, server.used, ...server.notes].join(" ").toLowerCase();
  return item;
}

function jobView(main, job) {
  document.title = `${job} · elasticctl`;
  const outcome = el("span"), facts = el("dl", { class: "facts" }), picture = el("div"), changes = el("dl", { class: "facts" });
  const bars = el("div", { class: "bars" }), resized = el("p", { class: "remark" }), why = el("dl", { class: "facts" }), report = el("dl", { class: "facts" });
  const events = new Rows(), trouble = el("p", { class: "trouble" });
  const jump = el("p", { class: "remark" }, ...["shares", "pauses", "why", "log", "facts", "report", "events"].flatMap((id) => [el("a", { href: "#" + id }, id), " "]));
  main.append(el("h1", {}, job + " ", outcome), trouble, jump, section("shares", "GPUs over time", picture, changes),
    section("pauses", "Resizes and pauses", resized, bars), section("why", "Why it has its GPUs, and what would change that", why),
    logSection(job), section("facts", "Facts", facts), section("report", "What became of its GPUs and its time", report), section("events", "Events", events.box));
  let drawn = () => {};
  addEventListener("resize", () => drawn());
  poll(jobPage(job), POLL_MS, (data, head, error) => {
    setText(trouble, error?.refused ? error.message : "");
    if (error) return;
    setText(outcome, data.outcome);
    outcome.className = data.style;
    const whole = data.facts.filter(([label, text, below]) => label || text || below.length);
    showFacts(facts, whole.map(([label, text, below]) => [label, [text, ...below].filter(Boolean).join("\n"), below.length || label === "share over time" ? "mono" : ""]));
    showFacts(report, data.report.map(([label, text]) => [label, text.trim()]));
    drawn = () => drawShares(picture, data);
    drawn();
    const last = data.shares.slice(-12).reverse();
    showFacts(changes, last.map(([, share, when, reason]) => [when, `${count(share, "GPU")}${reason ? ": " + reason : ""}`]));
    drawResizes(bars, resized, data.resizes);
    const columns = [["TIME", false], ["EVENT", false], ["TEXT", false]];
    events.show({ columns, note: "", rows: data.events.map(([when, kind, , text]) => [[when, kind, text], []]), links: [], users: [] }, "");
  }, true);
  let parts = [], starts = "";
  const showWhy = () => showFacts(why, [...parts, ...(starts ? [["starts", starts]] : [])]);
  poll(jobPage(job) + "/explain", EXPLAIN_MS, (data, head, error) => {
    if (error) { if (error.refused) showFacts(why, [["", error.message]]); return; }
    parts = data.parts.map(([label, text, command]) => [label, text, command ? "command mono" : ""]);
    showWhy();
  });
  poll(jobPage(job) + "/starts", FORECAST_MS, (data, head, error) => {
    starts = error ? "" : data.starts;
    if (parts.length) showWhy();
  });
}

// The share as steps, with each resize's pause in its true width, but at least a line.
function drawShares(box, data) {
  if (!data.shares.length) { box.replaceChildren(el("p", { class: "remark" }, "it has had no GPUs yet")); return; }
  const width = Math.max(240, box.clientWidth), height = 150, left = 28, bottom = 20, top = 8;
  const begin = data.begin_s, span = Math.max(1, data.end_s - begin), most = Math.max(1, data.asked[1] < 1000 ? data.asked[1] : 1, ...data.shares.map((each) => each[1]));
  const x = (at) => left + ((Math.min(Math.max(at, begin), data.end_s) - begin) / span) * (width - left - 4);
  const y = (share) => height - bottom - (share / most) * (height - bottom - top);
  const points = [[x(begin), y(0)]];
  for (const [at, share] of data.shares) points.push([x(at), points.at(-1)[1]], [x(at), y(share)]);
  points.push([x(data.end_s), points.at(-1)[1]]);
  const path = points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ");
  const told = `GPUs over ${ago(span)}: ${data.shares.map((each) => each[1]).join(", ")}`;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": told });
  svg.append(shape("polygon", { class: "area", points: `${path} ${x(data.end_s)},${y(0)}` }), shape("line", { class: "axis", x1: left, x2: width - 4, y1: y(0), y2: y(0) }));
  for (const bound of new Set([0, data.asked[0], most])) {
    svg.append(shape("line", { class: "bound", x1: left, x2: width - 4, y1: y(bound), y2: y(bound) }), shape("text", { x: left - 6, y: y(bound) + 4, "text-anchor": "end" }, String(bound)));
  }
  svg.append(shape("polyline", { class: "share", points: path }));
  for (const each of data.resizes) {
    if (each.time_s == null) continue;
    const at = x(each.time_s), mark = shape("rect", { class: "pause", x: at, y: top, width: Math.max(2, x(each.time_s + each.paused_s) - at), height: height - bottom - top });
    mark.append(shape("title", {}, each.text));
    svg.append(mark);
  }
  svg.append(shape("text", { x: left, y: height - 4 }, "submitted"), shape("text", { x: width - 4, y: height - 4, "text-anchor": "end" }, `${data.final ? "over" : "now"}, ${ago(span)} later`));
  box.replaceChildren(svg);
}

function drawResizes(box, remark, resizes) {
  const shown = resizes.slice(-20).reverse(), longest = Math.max(0.001, ...shown.map((each) => each.paused_s));
  setText(remark, shown.length ? "Each bar is how long training stood still; the red marks above are the same pauses." : "no resize has been measured");
  redraw(box, shown, (all) => all.flatMap((each) => {
    const svg = shape("svg", { viewBox: "0 0 100 10", height: 12, preserveAspectRatio: "none", role: "img", "aria-label": `${(each.paused_s * 1000).toFixed(0)} ms` });
    svg.append(shape("rect", { class: "gap", x: 0, y: 0, height: 10, width: Math.max(1, (100 * each.paused_s) / longest) }));
    return [el("span", {}, `${each.before} → ${each.after}${each.recovery ? " after a loss" : ""}`), svg, el("span", {}, each.text)];
  }));
}

function logSection(job) {
  const lines = el("div", { class: "logs mono", role: "log", tabindex: "0", "aria-label": "Log" }), trouble = el("p", { class: "trouble" });
  const follow = el("input", { type: "checkbox", id: "follow" }), only = el("select", { "aria-label": "Worker" }, new Option("all workers", ""));
  const note = el("span"), tools = el("p", { class: "tools" }, el("label", {}, follow, " follow"), only, note);
  const workers = new Set();
  let tail = "", next = 0;
  follow.checked = true;
  const shown = (node) => { node.hidden = only.value !== "" && node.dataset.worker !== only.value; };
  only.addEventListener("change", () => [...lines.children].forEach(shown));
  lines.addEventListener("wheel", (event) => { if (event.deltaY < 0) follow.checked = false; }, { passive: true });
  follow.addEventListener("change", () => { if (follow.checked) lines.scrollTop = lines.scrollHeight; });
  poll(() => `${jobPage(job)}/log?tail=${tail}&after=${next}`, LOG_MS, (data, head, error) => {
    setText(trouble, error?.refused ? error.message : data ? data.troubles.join("\n") : trouble.textContent);
    if (error) return !error.refused;
    if (data.anew) lines.replaceChildren();
    tail = data.tail; next = data.next;
    const made = data.lines.map(([at, worker, stream, text]) => {
      if (!workers.has(worker)) { workers.add(worker); only.append(new Option(`worker ${worker}`, worker)); }
      const line = el("div", { class: stream, title: new Date(at * 1000).toLocaleString() }, data.several ? el("span", { class: "worker" }, `[${worker}] `) : null, text);
      line.dataset.worker = worker;
      shown(line);
      return line;
    });
    lines.append(...made);
    while (lines.children.length > MOST_LOG_LINES) lines.firstChild.remove();
    if (made.length && follow.checked) lines.scrollTop = lines.scrollHeight;
    setText(note, data.ended ? "the log has ended" : lines.children.length ? "" : "no output yet");
    return !data.ended;
  });
  return section("log", "Log", tools, trouble, lines);
}

function historyPage(main) {
  const rows = new Rows(), none = el("p", { class: "remark" }), older = el("a", {}, "older jobs");
  main.append(section("history", "Jobs that are over, the latest first", none, rows.box, el("p", {}, older)));
  let again = () => {};
  $("user").addEventListener("change", () => again());
  poll("/history?after=" + encodeURIComponent(query.get("after") || ""), POLL_MS * 2, (data, head, error) => {
    if (error) return;
    again = () => rows.show(data.jobs, user());
    offerUsers(data.jobs.users);
    again();
    setText(none, data.jobs.rows.length ? "" : "no job is over");
    older.hidden = !data.next;
    older.href = "/history?after=" + encodeURIComponent(data.next);
  }, true);
}

function quotaPage(main) {
  const quotas = new Rows(), reservations = new Rows(), remark = el("p", { class: "remark" }), left = el("p", { class: "remark" });
  const reserved = section("reservations", "Reservations", reservations.box);
  main.append(section("quotas", "Quotas: guaranteed, in use, borrowed, lent", remark, quotas.box, left), reserved);
  poll("/quota", POLL_MS, (data, head, error) => {
    if (error) return;
    setText(remark, data.remark);
    setText(left, data.left_out);
    quotas.box.hidden = !data.quotas;
    if (data.quotas) quotas.show(data.quotas, "");
    reserved.hidden = !data.reservations;
    if (data.reservations) reservations.show(data.reservations, "");
  }, true);
}

function healthPage(main) {
  const servers = new Rows(), controllers = new Rows(), events = new Rows(), troubles = el("p", { class: "trouble" });
  servers.box.classList.add("tall");
  servers.box.tabIndex = 0;
  main.append(troubles, section("controllers", "Controllers", controllers.box), section("servers", "Servers", servers.box), section("events", "Last events", events.box));
  poll("/health", POLL_MS, (data, head, error) => {
    if (error) return;
    setText(troubles, data.troubles.join("\n"));
    servers.show(data.servers, "");
    controllers.show(data.controllers, "");
    const columns = [["TIME", false], ["EVENT", false], ["JOB", false], ["TEXT", false]];
    events.show({ columns, note: "", rows: data.events.map((event) => [event, []]), links: [], users: [] }, "");
  }, true);
}

// --- keys

function rowLinks() { return [...document.querySelectorAll("tbody tr:not([hidden]) th a")]; }
function step(by) {
  const links = rowLinks(), at = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, at < 0 ? 0 : at + by))]?.focus();
}
const KEYS = {
  "/": () => $("filter").select(),
  "?": () => $("keys").showModal(),
  j: () => step(1), k: () => step(-1),
  u: () => { location.href = location.pathname.startsWith("/jobs/") ? "/" : ".."; },
  1: () => { location.href = "/"; }, 2: () => { location.href = "/history"; }, 3: () => { location.href = "/quota"; }, 4: () => { location.href = "/health"; },
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || $("keys").open) return;
  if (event.target === $("filter")) {
    if (event.key === "Escape") { $("filter").value = ""; changed(); $("filter").blur(); }
    return;
  }
  if (event.target.tagName === "SELECT" || event.target.tagName === "INPUT" || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
function changed() { remember("filter", $("filter").value); filterRows(); }
$("filter").value = query.get("filter") || "";
$("filter").addEventListener("input", changed);
$("search").addEventListener("submit", (event) => event.preventDefault());
$("user").addEventListener("change", () => { localStorage.setItem("user", $("user").value); remember("user", $("user").value); });
$("help").addEventListener("click", () => $("keys").showModal());
$("close").addEventListener("click", () => $("keys").close());

for (const link of document.querySelectorAll("nav a:not(.home)")) if (link.pathname === location.pathname) link.setAttribute("aria-current", "page");
const main = $("main"), path = location.pathname;
main.replaceChildren();
if (path.startsWith("/jobs/")) jobView(main, decodeURIComponent(path.slice(6)));
else (({ "/history": historyPage, "/quota": quotaPage, "/health": healthPage })[path] || clusterPage)(main);
