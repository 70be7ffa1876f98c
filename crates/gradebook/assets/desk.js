"use strict";
// The review: saves one after the other, goes to the next work without a wait, lights the lines of the open criterion.
// Without this script every form and link still works.
(() => {
  const desk = () => document.getElementById("desk");
  const shown = () => desk()?.dataset.work;
  const parse = (text) => new DOMParser().parseFromString(text, "text/html");
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

  // --- Saves: each waits for the one before it, and names the version that this one left.
  const versions = new Map();
  // What could not be kept because of somebody else, by work: it stays until the person has decided.
  const conflicts = new Map();
  let line = Promise.resolve();
  let waiting = 0;
  let status = "";

  const tell = (text) => {
    status = text;
    const place = document.getElementById("status");
    if (place) place.textContent = text;
  };

  const remember = () => {
    const now = desk();
    if (now && waiting === 0) versions.set(now.dataset.work, now.dataset.version);
  };

  const send = async (action, body) => {
    for (;;) {
      try {
        return await fetch(action, { method: "POST", body, headers: { "X-Parts": "1" }, keepalive: true });
      } catch {
        tell("Not saved yet: tandem cannot be reached. Trying again …");
        await sleep(1000);
      }
    }
  };

  const save = (form, submitter) => {
    const body = new URLSearchParams(new FormData(form, submitter));
    const work = form.dataset.save;
    if ("again" in form.dataset) conflicts.delete(work);
    ready.clear();
    generation += 1;
    waiting += 1;
    tell("saving …");
    const done = line.then(async () => {
      if (versions.has(work)) body.set("version", versions.get(work));
      const response = await send(form.action, body);
      const page = parse(await response.text());
      waiting -= 1;
      take(page, work, response.status);
      return response.ok;
    });
    line = done.catch((error) => {
      waiting -= 1;
      tell("Not saved. Load the page again.");
      console.error(error);
    });
    return done;
  };

  // Takes over what came back for a work; the work itself only if it is the one that is shown.
  const take = (page, work, code) => {
    const next = page.getElementById("desk");
    if (!next) {
      tell(page.querySelector("h1")?.textContent ?? "Not saved.");
      return;
    }
    versions.set(work, next.dataset.version);
    const conflict = next.querySelector(".conflict");
    if (code === 409 && conflict) conflicts.set(work, [...(conflicts.get(work) ?? []), conflict]);
    replace("head", page);
    replace("queue", page);
    if (shown() === work) {
      const open = current()?.dataset.criterion;
      const focus = focused();
      replace("desk", page);
      openCriterion(open);
      restore(focus);
    }
    if (code < 300) tell(waiting > 0 ? "saving …" : "saved");
    else if (shown() !== work) tell("Something was not saved: look at the work that is marked.");
    else tell("not saved");
    settle();
  };

  const replace = (id, page) => {
    const from = page.getElementById(id);
    if (from) document.getElementById(id)?.replaceWith(from);
  };

  // What every change of the page needs.
  const settle = () => {
    for (const link of document.querySelectorAll("#queue [data-work]")) {
      if (link.dataset.work === shown()) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
      if (conflicts.has(link.dataset.work)) link.dataset.conflict = "";
    }
    const open = conflicts.get(shown());
    const notices = document.getElementById("notices");
    if (open && notices) {
      notices.querySelectorAll(".conflict").forEach((notice) => notice.remove());
      notices.append(...open);
    }
    tell(status);
    light();
    tabs();
    document.dispatchEvent(new Event("tandem-shown"));
    prefetch();
  };

  const focused = () => {
    const active = document.activeElement;
    return active?.closest("#desk") && active.name ? { name: active.name, value: active.value } : null;
  };
  const restore = (focus) => {
    if (!focus) return;
    const same = `[name="${CSS.escape(focus.name)}"][value="${CSS.escape(focus.value)}"]`;
    desk()?.querySelector(`.now button${same}`)?.focus({ preventScroll: true });
  };

  // --- Going to another work.
  const ready = new Map();
  let generation = 0;
  let turns = 0;

  const load = async (href) => {
    const response = await fetch(href);
    if (!response.ok) throw new Error(`status ${response.status}`);
    return { text: await response.text(), url: response.url };
  };

  const prefetch = async () => {
    const links = document.querySelectorAll('[data-go="open"], [data-go="next"]');
    for (const { href } of links) {
      if (ready.has(href)) continue;
      const asked = generation;
      try {
        const page = await load(href);
        if (asked === generation) ready.set(href, page);
      } catch {
        return;
      }
    }
  };

  const show = (page, push) => {
    const next = parse(page.text);
    const main = next.querySelector("main.review");
    if (!main) {
      location.href = page.url;
      return;
    }
    document.querySelector("main.review").replaceWith(main);
    replace("head", next);
    document.title = next.title;
    if (push) history.pushState(null, "", page.url);
    const now = desk();
    // A save of this work may be on its way; then its answer says the version.
    if (waiting === 0 || !versions.has(now.dataset.work)) versions.set(now.dataset.work, now.dataset.version);
    settle();
    lookAtFirst();
    main.querySelector("#queue [aria-current]")?.scrollIntoView({ block: "nearest" });
  };

  const go = async (href, push = true) => {
    const turn = ++turns;
    const kept = ready.get(href);
    if (kept) {
      show(kept, push);
      return;
    }
    try {
      const page = await load(href);
      if (turn === turns) show(page, push);
    } catch {
      location.href = href;
    }
  };

  // --- Forms and links.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement)) return;
    if ("names" in form.dataset) {
      event.preventDefault();
      await line;
      await fetch(form.action, { method: "POST", redirect: "manual" });
      location.reload();
      return;
    }
    if ("undo" in form.dataset) {
      event.preventDefault();
      await line;
      generation += 1;
      ready.clear();
      const response = await send(form.action, new URLSearchParams());
      const page = { text: await response.text(), url: response.url };
      if (response.ok) {
        show(page, true);
        tell("undone");
      } else tell(parse(page.text).querySelector("main p")?.textContent ?? "not undone");
      return;
    }
    if (!form.dataset.save) return;
    event.preventDefault();
    if (!("approve" in form.dataset)) {
      save(form, event.submitter);
      return;
    }
    const next = document.querySelector('[data-go="open"]')?.href;
    const isSure = waiting === 0 && "canApprove" in desk().dataset && !conflicts.has(form.dataset.save);
    const kept = next && ready.get(next);
    const work = form.dataset.save;
    const done = save(form, event.submitter);
    if (isSure && kept) {
      turns += 1;
      show(kept, true);
    } else if ((await done) && next && shown() === work) await go(next);
  });

  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element) || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const link = event.target.closest("#queue a, .steps a");
    if (link) {
      event.preventDefault();
      go(link.href);
      return;
    }
    const header = event.target.closest(".criterion > header");
    if (header) openCriterion(header.parentElement.dataset.criterion);
    const jump = event.target.closest('a[href^="#f"]');
    if (jump) {
      event.preventDefault();
      look(jump.getAttribute("href").slice(1));
    }
    const tab = event.target.closest(".tabs a");
    if (tab) {
      event.preventDefault();
      tabs(tab.getAttribute("href").slice(1));
    }
  });

  // Forms that were opened get the place to write.
  document.addEventListener(
    "toggle",
    (event) => {
      if (event.target.open) event.target.querySelector("textarea")?.focus();
    },
    true,
  );

  window.addEventListener("popstate", () => go(location.href, false));
  window.addEventListener("beforeunload", (event) => {
    if (waiting > 0) event.preventDefault();
  });

  // --- The open criterion and its lines.
  const current = () => document.querySelector(".criterion.now");

  const openCriterion = (id) => {
    const next = id && document.querySelector(`.criterion[data-criterion="${CSS.escape(id)}"]`);
    if (!next) return;
    for (const criterion of document.querySelectorAll(".criterion")) {
      const isOpen = criterion === next;
      criterion.classList.toggle("now", isOpen);
      criterion.querySelector("[aria-expanded]")?.setAttribute("aria-expanded", String(isOpen));
    }
    next.scrollIntoView({ block: "nearest" });
    light();
  };

  const light = () => {
    const id = current()?.dataset.criterion;
    for (const row of document.querySelectorAll(".source [data-criteria]")) {
      const isOpen = row.dataset.criteria.split(" ").includes(id);
      row.classList.toggle("open", isOpen);
      row.classList.toggle("other", !isOpen);
    }
  };

  const look = (id) => {
    const row = document.getElementById(id);
    if (!row) return;
    row.closest("details")?.setAttribute("open", "");
    tabs("work", true);
    row.scrollIntoView({ block: "center" });
  };

  const lookAtFirst = () => {
    const row = document.querySelector(".source .open") ?? document.querySelector(".source [data-flagged]");
    row?.scrollIntoView({ block: "center" });
  };

  const step = (by) => {
    const all = [...document.querySelectorAll(".criterion")];
    const place = all.indexOf(current()) + by;
    if (all[place]) {
      openCriterion(all[place].dataset.criterion);
      lookAtFirst();
    }
  };

  let evidence = 0;
  const stepEvidence = (by) => {
    const all = [...(current()?.querySelectorAll(".quote") ?? [])];
    if (all.length === 0) return;
    evidence = (evidence + by + all.length) % all.length;
    look(all[evidence].getAttribute("href").slice(1));
  };

  document.addEventListener("tandem-key", (event) => {
    const acts = {
      ArrowDown: () => step(1),
      ArrowUp: () => step(-1),
      "]": () => stepEvidence(1),
      "[": () => stepEvidence(-1),
      0: () => current()?.querySelector('[data-key="1"]')?.click(),
    };
    if (!(event.detail in acts)) return;
    event.preventDefault();
    acts[event.detail]();
  });

  // --- On a narrow screen one part at a time.
  let tab = "desk";
  const tabs = (next = tab, isJump = false) => {
    if (isJump && getComputedStyle(document.querySelector(".tabs")).display === "none") return;
    tab = next;
    for (const part of document.querySelectorAll("main.review > *")) part.classList.toggle("show", part.id === tab);
    for (const link of document.querySelectorAll(".tabs a")) {
      if (link.getAttribute("href") === `#${tab}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  };

  remember();
  settle();
  lookAtFirst();
})();
