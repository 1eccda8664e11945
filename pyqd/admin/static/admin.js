// Live updates, confirmation and the cursor of charts. All pages work without this script.
"use strict";

const live = document.getElementById("live");
const age = document.getElementById("age");
const findings = document.getElementById("findings");
const confirmation = document.getElementById("confirm");
let isLoading = false;

// The reader would lose what he is about to do.
function isBusy() {
  const selection = document.getSelection();
  const selects = selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  const focused = document.activeElement;
  const isUsed = live.contains(focused) && focused.matches("a, button, input, select, textarea");
  return confirmation.open || selects || document.hidden || isUsed;
}

// Tables that were scrolled sideways stay so, and keep the focus.
function replaceLive(html) {
  const before = [...live.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each === document.activeElement]);
  live.innerHTML = html;
  live.querySelectorAll(".scroll").forEach((each, number) => {
    const [left, hadFocus] = before[number] || [0, false];
    each.scrollLeft = left;
    if (hadFocus) each.focus({ preventScroll: true });
  });
}

async function update() {
  if (isLoading || isBusy()) return;
  isLoading = true;
  try {
    const url = new URL(location.href);
    url.searchParams.set("fragment", "1");
    const answer = await fetch(url, { headers: { Accept: "text/html" } });
    // The login has ended.
    if (answer.status === 401) location.reload();
    // Of a topic that is gone, and of brokers that do not answer, the page says so.
    const isPage = answer.ok || answer.status === 404 || answer.status === 502;
    const html = isPage && answer.headers.has("X-Fragment") ? await answer.text() : "";
    if (html && !isBusy()) replaceLive(html);
    const count = answer.headers.get("X-Findings");
    if (findings && count !== null) {
      findings.textContent = count;
      findings.hidden = count === "0";
    }
  } catch {
    age.textContent = age.dataset.stale;
  } finally {
    isLoading = false;
  }
}

let events = null;
let polls = null;
let retry = 0;
const RETRY_MS = 5000;

function follow() {
  clearTimeout(retry);
  if (events || document.hidden) return;
  events = new EventSource(document.body.dataset.live);
  events.addEventListener("poll", (event) => {
    age.textContent = "";
    if (polls !== null && polls !== event.data) update();
    polls = event.data;
  });
  events.addEventListener("error", () => {
    age.textContent = age.dataset.stale;
    // Browsers connect again by themselves, but not after an answer such as 502 or 401.
    if (events?.readyState !== EventSource.CLOSED) return;
    events = null;
    retry = setTimeout(() => { follow(); update(); }, RETRY_MS);
  });
}

// Browsers have few connections per host: a page that nobody sees gives its own back, and brokers are polled less.
function unfollow() {
  clearTimeout(retry);
  if (events) events.close();
  events = null;
}

if (live.childElementCount) {
  follow();
  document.addEventListener("visibilitychange", () => { if (document.hidden) unfollow(); else follow(); });
  addEventListener("pagehide", unfollow);
  addEventListener("pageshow", follow);
}

document.addEventListener("submit", (event) => {
  const form = event.target;
  const question = event.submitter?.dataset.confirm || form.dataset.confirm;
  // How many a filter matches only the server can tell, and asks itself.
  if (!question || form.elements.confirmed || form.elements.all?.checked) return;
  event.preventDefault();
  document.getElementById("confirm-text").textContent = question;
  confirmation.returnValue = "no";
  confirmation.onclose = () => {
    if (confirmation.returnValue !== "yes") return;
    const field = document.createElement("input");
    Object.assign(field, { type: "hidden", name: "confirmed", value: "yes" });
    form.append(field);
    form.requestSubmit(event.submitter);
  };
  confirmation.showModal();
});

// One box chooses all messages of the page.
document.querySelectorAll("th[data-choose]").forEach((cell) => {
  const box = document.createElement("input");
  Object.assign(box, { type: "checkbox", ariaLabel: cell.dataset.choose, title: cell.dataset.choose });
  box.addEventListener("change", () => {
    cell.closest("table").querySelectorAll("tbody input[type=checkbox]").forEach((each) => { each.checked = box.checked; });
  });
  cell.append(box);
});

// "/" goes to the search, as in other web programs.
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  document.querySelector(".find input")?.focus();
});

document.addEventListener("pointermove", (event) => {
  const figure = event.target.closest(".chart");
  document.querySelectorAll(".chart .cursor, .chart output").forEach((mark) => mark.remove());
  if (figure) showValue(figure, event.clientX);
});

function showValue(figure, clientX) {
  const svg = figure.querySelector("svg");
  const box = svg.getBoundingClientRect();
  const left = 52;
  const width = svg.viewBox.baseVal.width;
  const x = (clientX - box.left) / box.width * width;
  const values = figure.dataset.values.split(",");
  const index = Math.round((x - left) / (width - left) * (values.length - 1));
  if (index < 0 || index >= values.length || values[index] === "") return;
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  for (const [name, value] of [["x1", x], ["x2", x], ["y1", 8], ["y2", 132]]) line.setAttribute(name, value);
  line.setAttribute("class", "cursor");
  svg.append(line);
  const seconds = Number(figure.dataset.end) - (values.length - 1 - index) * Number(figure.dataset.step);
  const clock = new Date(seconds * 1000).toISOString().slice(11, 19);
  const text = document.createElement("output");
  text.textContent = `${clock}  ${Number(values[index]).toLocaleString(undefined, { maximumFractionDigits: 1 })}${figure.dataset.unit}`;
  figure.append(text);
}
