// What every page does: shows times in Airflow's zone, follows the server's events, and does what buttons say.
const { root, airflow } = document.body.dataset;

// ---- times

function zone() {
  try { return JSON.parse(localStorage.getItem("timezone")) || undefined; } catch { return undefined; }
}

function timeFormat(options) {
  const form = { hourCycle: "h23", ...options };
  try { return new Intl.DateTimeFormat("sv-SE", { ...form, timeZone: zone() }); }
  catch { return new Intl.DateTimeFormat("sv-SE", form); }
}

function inZone(within) {
  const today = timeFormat({ dateStyle: "short" }), hour = timeFormat({ timeStyle: "short" });
  const full = timeFormat({ dateStyle: "short", timeStyle: "medium" }), name = zone() ?? Intl.DateTimeFormat().resolvedOptions().timeZone;
  for (const element of within.querySelectorAll("time")) {
    const at = new Date(element.dateTime);
    element.textContent = today.format(at) === today.format(new Date()) ? `today ${hour.format(at)}` : `${today.format(at)} ${hour.format(at)}`;
    element.title = `${full.format(at)} ${name}`;
  }
}

// ---- what changes

// Replaces what has changed among an element's children, and among its tiles.
function patch(old, next) {
  const mine = [...old.children], theirs = [...next.children];
  if (mine.length !== theirs.length || mine.some((child, n) => child.tagName !== theirs[n].tagName || child.id !== theirs[n].id)) {
    old.replaceChildren(...next.childNodes);
    return;
  }
  for (const [n, child] of mine.entries()) {
    if (child.isEqualNode(theirs[n])) continue;
    if (child.matches(".tiles")) patch(child, theirs[n]);
    else child.replaceWith(theirs[n]);
  }
}

// Shows new HTML in an element; what has the focus, or is unfolded, stays so.
function renew(element, html) {
  const next = document.createElement("template");
  next.innerHTML = html;
  inZone(next.content);
  const focused = element.contains(document.activeElement) ? document.activeElement.id : "";
  const opened = [...element.querySelectorAll("details[open][id]")].map((details) => details.id);
  patch(element, next.content);
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

const live = document.getElementById("live"), stale = document.getElementById("stale");
const SILENCE = 10000;  // ms without an event
let heard = Date.now(), source = null, why = "";

function follow() {
  source = new EventSource(live.dataset.events);
  source.addEventListener("page", (event) => {
    hear();
    renew(live, JSON.parse(event.data));
    dispatchEvent(new Event("renewed"));
  });
  source.addEventListener("alive", hear);
  source.addEventListener("error", async () => {
    const closed = source.readyState === EventSource.CLOSED;
    why = closed ? await reason() : "Airflow does not answer";
    if (closed) setTimeout(follow, 5000);
  });
}

function hear() {
  heard = Date.now();
  why = "";
  stale.hidden = true;
}

// Why the server refuses to send events.
async function reason() {
  try {
    const answer = await fetch(location.href, { method: "GET", redirect: "manual", signal: AbortSignal.timeout(5000) });
    if (answer.status === 401 || answer.status === 403 || answer.type === "opaqueredirect") return "Nobody is logged in any more";
    return answer.ok ? "" : `Airflow answers with error ${answer.status}`;
  } catch {
    return "Airflow does not answer";
  }
}

function look() {
  const age = Date.now() - heard;
  if (age > SILENCE || (why && age > 4000)) {
    stale.textContent = `${why || "Airflow does not answer"}. What is shown here is ${Math.round(age / 1000)} s old.`;
    stale.hidden = false;
  }
}

if (live) {
  follow();
  setInterval(look, 1000);
  addEventListener("pagehide", () => source.close());
}

// ---- buttons

const said = document.getElementById("said");

function say(text, tone = "good") {
  said.className = `alert ${tone}`;
  said.textContent = text;
  said.hidden = false;
}

async function ask(url, body = {}) {
  const answer = await fetch(url, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: AbortSignal.timeout(30000),
  });
  const told = await answer.json().catch(() => ({}));
  if (answer.ok) return told;
  if (answer.status === 401 || answer.status === 403) throw new Error("Airflow does not let you do this");
  throw new Error(typeof told.detail === "string" ? told.detail : `Airflow answers with error ${answer.status}`);
}

// Asks the page, which lets those do it who may trigger the load's own DAG.
async function trigger(what, app) {
  const { dag, run } = await ask(`${root}/apps/${encodeURIComponent(app)}/${what}`);
  return `${dag} was triggered: ${run}.`;
}

const ACTIONS = {
  async restart({ dag, run }) {
    const cleared = await ask(`${airflow}/api/v2/dags/${encodeURIComponent(dag)}/clearTaskInstances`, { dry_run: false, only_failed: true, dag_run_id: run });
    return cleared.total_entries ? "Its task was cleared: the scheduler starts it again, and it goes on where it was."
                                 : "Airflow has no failed task in that run: it has taken it up already, or waits to retry it.";
  },
  verify: ({ app }) => trigger("verify", app),
  replay: ({ app }) => trigger("replay", app),
};

addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-act]");
  if (!button) return;
  button.disabled = true;
  try {
    say(await ACTIONS[button.dataset.act](button.dataset));
  } catch (error) {
    say(`${error instanceof TypeError || error.name === "TimeoutError" ? "Airflow does not answer" : error.message}.`, "bad");
  }
  button.disabled = false;
});

// In Airflow's frame, a link to Airflow leads the whole window there.
addEventListener("click", (event) => {
  const link = event.target.closest("a.frame");
  if (!link || parent === window || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const outer = parent.document.createElement("a");
  outer.href = link.href;
  parent.document.body.append(outer);
  outer.click();
  outer.remove();
});

inZone(document);
addEventListener("storage", (event) => { if (event.key === "timezone") inZone(document); });
